use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const NEXT: &[u8] = b"PRI * HTTP/2.0";

/// The claim and what is left behind the header.
fn claimed(mut bytes: &[u8]) -> io::Result<(Claim, Vec<u8>)> {
    let claim = read(&mut bytes).now_or_never().expect("bytes are there")?;
    Ok((claim, bytes.to_vec()))
}

/// A v2 header: version and command, family and protocol, what follows.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [V2, &[command, family], &length, rest, NEXT].concat()
}

fn address(text: &str) -> Claim {
    Claim::Address(text.parse().unwrap())
}

#[test]
fn origin_6_v1_names_the_source_and_takes_no_byte_more() {
    for (line, claim) in [
        (
            "PROXY TCP4 192.0.2.7 198.51.100.1 56324 50051\r\n",
            address("192.0.2.7"),
        ),
        (
            "PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n",
            address("2001:db8::7"),
        ),
        (
            "PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n",
            address("192.0.2.7"),
        ),
        ("PROXY UNKNOWN\r\n", Claim::Bad),
        ("PROXY UNKNOWN what ever\r\n", Claim::Bad),
    ] {
        let bytes = [line.as_bytes(), NEXT].concat();
        assert_eq!(claimed(&bytes).unwrap(), (claim, NEXT.to_vec()), "{line:?}");
    }
}

#[test]
fn origin_6_v2_names_the_source_and_takes_no_byte_more() {
    let v4 = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0xc3, 0x83];
    let with_fields = [&v4[..], &[0x04, 0, 1, 42]].concat();
    let mut v6 = [0_u8; 36];
    v6[..2].copy_from_slice(&[0x20, 0x01]);
    v6[15] = 7;
    let mut mapped = [0_u8; 36];
    mapped[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
    for (bytes, claim) in [
        (v2(0x21, 0x11, &v4), address("192.0.2.7")),
        (v2(0x21, 0x11, &with_fields), address("192.0.2.7")),
        (v2(0x21, 0x21, &v6), address("2001::7")),
        (v2(0x21, 0x21, &mapped), address("192.0.2.7")),
    ] {
        assert_eq!(claimed(&bytes).unwrap(), (claim, NEXT.to_vec()));
    }
}

#[test]
fn origin_6_local_claims_nobody_and_other_families_claim_badly() {
    for (bytes, claim) in [
        (v2(0x20, 0x00, &[]), Claim::None),
        (v2(0x20, 0x11, &[0; 12]), Claim::None),
        (v2(0x21, 0x00, &[]), Claim::Bad),
        (v2(0x21, 0x31, &[0; 216]), Claim::Bad),
    ] {
        assert_eq!(claimed(&bytes).unwrap(), (claim, NEXT.to_vec()));
    }
}

#[test]
fn what_is_no_header_is_an_error() {
    let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
    for bytes in [
        NEXT.to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00".to_vec(),
        b"PROXY TCP4 192.0.2.7\r\n".to_vec(),
        b"PROXY TCP4 300.0.2.7 1.1.1.1 1 2\r\n".to_vec(),
        b"PROXYTCP4 1.1.1.1 1.1.1.1 1 2\r\n".to_vec(),
        long,
        // Version 1, and too few bytes for an IPv4 address.
        v2(0x11, 0x11, &[0; 12]),
        v2(0x21, 0x11, &[0; 11]),
        v2(0x21, 0x11, &[0; V2_REST + 1]),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..20.min(bytes.len())]).into_owned();
        let error = claimed(&bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{shown:?}");
    }
}

#[test]
fn a_connection_that_ends_within_the_header_is_an_error() {
    let whole = v2(0x21, 0x11, &[1; 12]);
    for end in 0..V2_FIXED + 12 {
        let error = claimed(&whole[..end]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        start in prop_oneof![Just(V2.to_vec()), Just(b"PROXY ".to_vec()), Just(Vec::new())],
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = claimed(&[start, rest].concat());
    }
}
