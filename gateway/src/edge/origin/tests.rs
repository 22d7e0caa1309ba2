use http::HeaderValue;

use super::*;

const PROXY: &str = "10.1.2.3";
const CLIENT: &str = "192.0.2.7";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn sources() -> Vec<OriginSource> {
    ["10.0.0.0/8", "2001:db8::1"]
        .map(|text| OriginSource::parse(text).unwrap())
        .to_vec()
}

fn headers(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(FORWARDED_FOR, HeaderValue::from_str(line).unwrap());
    }
    headers
}

struct Bench(OriginRule);

impl Bench {
    fn new(mode: OriginMode, trusted_hops: usize) -> Self {
        let origin = CallerOrigin {
            mode,
            sources: sources(),
            trusted_hops,
        };
        let metrics = Arc::new(Metrics::new("test").unwrap());
        Self(OriginRule::new(origin, metrics))
    }

    fn proxied() -> Self {
        Self::new(OriginMode::ProxyProtocol, 0)
    }

    fn forwarded(trusted_hops: usize) -> Self {
        Self::new(OriginMode::ForwardedFor, trusted_hops)
    }

    /// The counters of untrusted_source, no_claim and bad_claim.
    fn ignored(&self, mode: &str) -> [u64; 3] {
        ["untrusted_source", "no_claim", "bad_claim"].map(|reason| {
            let family = &self.0.metrics.grpc_origin_ignored_total;
            family.with_label_values(&[mode, reason]).get()
        })
    }

    fn claim(&self, peer: &str, claim: Claim) -> CallOrigin {
        self.0.decide(ip(peer), claim, &HeaderMap::new())
    }

    fn lines(&self, peer: &str, lines: &[&str]) -> CallOrigin {
        self.0.decide(ip(peer), Claim::None, &headers(lines))
    }
}

#[test]
fn origin_1_transport_is_the_tcp_peer_whatever_a_header_says() {
    let bench = Bench::new(OriginMode::Transport, 0);
    let origin = bench.lines("::ffff:192.0.2.1", &["198.51.100.9"]);
    assert_eq!(origin, Some(ip("192.0.2.1")));
    assert_eq!(bench.ignored("forwarded_for"), [0, 0, 0]);
}

#[test]
fn origin_2_a_claim_of_an_unlisted_peer_is_ignored_and_counted() {
    let bench = Bench::proxied();
    let claims = [Claim::Address(ip(CLIENT)), Claim::Bad];
    for claim in claims {
        assert_eq!(bench.claim("192.0.2.1", claim), Some(ip("192.0.2.1")));
    }
    assert_eq!(bench.claim("192.0.2.1", Claim::None), Some(ip("192.0.2.1")));
    assert_eq!(bench.ignored("proxy_protocol"), [2, 0, 0]);

    let bench = Bench::forwarded(0);
    assert_eq!(
        bench.lines("2001:db8::2", &[CLIENT]),
        Some(ip("2001:db8::2"))
    );
    assert_eq!(bench.lines("2001:db8::2", &[]), Some(ip("2001:db8::2")));
    assert_eq!(bench.ignored("forwarded_for"), [1, 0, 0]);
}

#[test]
fn origin_3_a_listed_peer_names_the_client_or_nobody_is_known() {
    let bench = Bench::proxied();
    assert_eq!(
        bench.claim(PROXY, Claim::Address(ip(CLIENT))),
        Some(ip(CLIENT))
    );
    assert_eq!(bench.claim(PROXY, Claim::None), None);
    assert_eq!(bench.claim(PROXY, Claim::Bad), None);
    assert_eq!(bench.ignored("proxy_protocol"), [0, 1, 1]);
}

#[test]
fn origin_4_a_mapped_peer_is_looked_up_as_ipv4() {
    let bench = Bench::proxied();
    assert_eq!(
        bench.claim("::ffff:10.1.2.3", Claim::Address(ip(CLIENT))),
        Some(ip(CLIENT))
    );
}

#[test]
fn origin_7_only_the_entry_of_the_first_trusted_hop_is_read() {
    let cases: &[(usize, &[&str], Option<&str>)] = &[
        (0, &["192.0.2.7"], Some("192.0.2.7")),
        (0, &["forged, 192.0.2.7"], Some("192.0.2.7")),
        (0, &["192.0.2.1", "x, \t192.0.2.7 \t"], Some("192.0.2.7")),
        (1, &["forged,192.0.2.7 , 10.0.0.2"], Some("192.0.2.7")),
        (1, &["192.0.2.7", "10.0.0.2"], Some("192.0.2.7")),
        (2, &["192.0.2.7", "10.0.0.2"], None),
        (1, &["192.0.2.7"], None),
        (0, &["192.0.2.7,"], None),
        (0, &[""], None),
        (0, &["2001:DB8::7"], Some("2001:db8::7")),
        (0, &["fe80::7%eth0"], Some("fe80::7")),
        (0, &["::ffff:192.0.2.7"], Some("192.0.2.7")),
        (0, &["192.0.2.7%eth0"], None),
        (0, &["192.0.2.7:4711"], None),
        (0, &["[2001:db8::7]"], None),
        (0, &["192.0.2.07"], None),
        (0, &["192.0.7"], None),
        (0, &["3221225991"], None),
        (0, &["unknown"], None),
    ];
    for (hops, lines, expected) in cases {
        let bench = Bench::forwarded(*hops);
        assert_eq!(
            bench.lines(PROXY, lines),
            expected.map(ip),
            "{lines:?} with {hops} hops"
        );
        let bad = u64::from(expected.is_none());
        assert_eq!(bench.ignored("forwarded_for"), [0, 0, bad], "{lines:?}");
    }
}

#[test]
fn origin_7_an_address_has_at_most_64_bytes() {
    let zone = |length: usize| format!("fe80::1%{}", "z".repeat(length));
    let bench = Bench::forwarded(0);
    assert_eq!(bench.lines(PROXY, &[&zone(56)]), Some(ip("fe80::1")));
    assert_eq!(bench.lines(PROXY, &[&zone(57)]), None);
}

#[test]
fn origin_7_without_a_header_there_is_no_claim() {
    let bench = Bench::forwarded(0);
    assert_eq!(bench.lines(PROXY, &[]), None);
    assert_eq!(bench.ignored("forwarded_for"), [0, 1, 0]);
}

#[test]
fn origin_7_bytes_to_the_left_never_matter() {
    let mut headers = HeaderMap::new();
    let line = HeaderValue::from_bytes(b"\xff\xfe;, 192.0.2.7").unwrap();
    headers.append(FORWARDED_FOR, line);
    let bench = Bench::forwarded(0);
    let origin = bench.0.decide(ip(PROXY), Claim::None, &headers);
    assert_eq!(origin, Some(ip(CLIENT)));
}
