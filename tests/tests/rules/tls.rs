//! TLS of a listener: LSN-3, LSN-10, LSN-14.

use crate::support::{command, serve_one};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use yuzu_gateway::config::{ClientAuth, ListenerTls, Service, TlsVersion};
use yuzu_gateway::{Gateway, StartError};
use yuzu_tests::agent::{Agent, PATIENCE};
use yuzu_tests::certs::{Authority, Directory, Leaf, Wish};
use yuzu_tests::raw::{Options, Tls, Version};
use yuzu_tests::testbed::{Setup, TestBed};

/// An install whose gateway serves its agents over TLS.
struct Install {
    authority: Authority,
    directory: Directory,
    setup: Setup,
}

impl Install {
    fn new() -> Self {
        let authority = Authority::new("install");
        let directory = Directory::new();
        let (cert_file, key_file) = directory.write_leaf("gateway", &authority.gateway());
        let tls = ListenerTls {
            cert_file,
            key_file,
            ca_file: directory.write("ca.pem", &authority.pem()),
            ..ListenerTls::of(&[Service::Agent])
        };
        let setup = Setup::default().agent_listener(|listener| listener.tls = Some(tls));
        Self {
            authority,
            directory,
            setup,
        }
    }

    fn tls(mut self, change: impl FnOnce(&mut ListenerTls)) -> Self {
        let tls = self.setup.gateway.listeners[0].tls.as_mut();
        change(tls.expect("an install has TLS"));
        self
    }

    fn trusting(&self) -> Tls {
        Tls::trusting(&self.authority.pem()).unwrap()
    }

    fn presenting(&self, leaf: &Leaf) -> Tls {
        Tls::presenting(&self.authority.pem(), &leaf.certificate, &leaf.key).unwrap()
    }

    async fn start(&self) -> TestBed {
        self.setup.clone().start().await
    }
}

async fn attach(bed: &TestBed, tls: Tls) -> Result<Agent, String> {
    let options = Options {
        tls: Some(tls),
        ..Options::default()
    };
    Agent::attach_with(bed.agents(), "agent-1", &options).await
}

async fn failures(bed: &TestBed, kind: &str) -> f64 {
    let labels = [("listener", "agent"), ("kind", kind)];
    bed.metric("listener_tls_handshake_failures_total", &labels)
        .await
}

async fn failed(bed: &TestBed, kind: &str) {
    let labels = [("listener", "agent"), ("kind", kind)];
    let name = "listener_tls_handshake_failures_total";
    bed.metric_becomes(name, &labels, 1.0).await;
}

#[tokio::test]
async fn lsn_10_agents_are_served_over_tls_1_2_and_1_3() {
    let install = Install::new();
    let bed = install.start().await;
    for version in [Version::V1_2, Version::V1_3] {
        let tls = Tls::in_version(&install.authority.pem(), version).unwrap();
        let mut agent = attach(&bed, tls).await.unwrap();
        let operator = bed.operator().await;
        let mut fanout = operator
            .send(&["agent-1"], command("c-1"), 30)
            .await
            .unwrap();
        serve_one(&mut agent).await;
        let (entries, _) = fanout.rest().await.unwrap();
        assert_eq!(entries.len(), 1, "{version:?}");
        assert_eq!(agent.heartbeat().await.unwrap().status.code, 0);
    }
    bed.stop().await;
}

#[tokio::test]
async fn lsn_10_min_version_1_3_refuses_1_2() {
    let install = Install::new().tls(|tls| tls.min_version = TlsVersion::V1_3);
    let bed = install.start().await;
    let old = Tls::in_version(&install.authority.pem(), Version::V1_2).unwrap();
    attach(&bed, old).await.unwrap_err();
    failed(&bed, "protocol_version").await;
    attach(&bed, install.trusting()).await.unwrap();
}

#[tokio::test]
async fn lsn_10_no_client_certificate_is_asked_for_by_default() {
    let install = Install::new();
    let bed = install.start().await;
    // A certificate of another CA would be refused, if it were asked for.
    let stranger = Authority::new("other").agent("agent-1");
    attach(&bed, install.presenting(&stranger)).await.unwrap();
}

#[tokio::test]
async fn lsn_10_a_requested_certificate_may_be_absent_and_must_not_be_bad() {
    let install = Install::new().tls(|tls| tls.client_auth = ClientAuth::Request);
    let bed = install.start().await;
    attach(&bed, install.trusting()).await.unwrap();
    let own = install.authority.agent("agent-1");
    attach(&bed, install.presenting(&own)).await.unwrap();
    let stranger = Authority::new("other").agent("agent-1");
    attach(&bed, install.presenting(&stranger))
        .await
        .unwrap_err();
    failed(&bed, "unknown_ca").await;
    let stale = Wish::host("agent-1").client_only().expired();
    let stale = install.authority.issue(stale);
    attach(&bed, install.presenting(&stale)).await.unwrap_err();
    failed(&bed, "certificate_expired").await;
}

#[tokio::test]
async fn lsn_10_a_required_certificate_must_be_there() {
    let install = Install::new().tls(|tls| tls.client_auth = ClientAuth::Require);
    let bed = install.start().await;
    attach(&bed, install.trusting()).await.unwrap_err();
    failed(&bed, "certificate_required").await;
    let own = install.authority.agent("agent-1");
    attach(&bed, install.presenting(&own)).await.unwrap();
}

#[tokio::test]
async fn lsn_14_failed_handshakes_count_by_listener_and_kind() {
    let install = Install::new();
    let bed = install.start().await;
    for kind in ["timeout", "closed", "not_tls", "other"] {
        assert_eq!(failures(&bed, kind).await, 0.0, "{kind}");
    }
    Agent::attach(bed.agents(), "agent-1").await.unwrap_err();
    failed(&bed, "not_tls").await;

    let stranger = Tls::trusting(&Authority::new("other").pem()).unwrap();
    attach(&bed, stranger).await.unwrap_err();
    failed(&bed, "refused_by_peer").await;

    let web = install.trusting().offering(&["http/1.1"]);
    attach(&bed, web).await.unwrap_err();
    failed(&bed, "no_application_protocol").await;

    drop(TcpStream::connect(bed.agents()).await.unwrap());
    failed(&bed, "closed").await;
    attach(&bed, install.trusting()).await.unwrap();
}

#[tokio::test]
async fn lsn_3_a_handshake_that_is_not_complete_in_time_is_closed() {
    let install = Install::new();
    let limit = Duration::from_millis(300);
    let setup = install.setup.clone().agent_listener(|listener| {
        listener.limits.handshake_timeout = limit;
        listener.limits.max_connections = 2;
    });
    let bed = setup.start().await;
    let mut silent = TcpStream::connect(bed.agents()).await.unwrap();
    let mut begun = TcpStream::connect(bed.agents()).await.unwrap();
    begun.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let started = tokio::time::Instant::now();
    for stream in [&mut silent, &mut begun] {
        let end = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await;
        assert!(matches!(end.expect("closed"), Ok(0) | Err(_)));
    }
    assert!(started.elapsed() < limit * 5);
    let labels = [("listener", "agent"), ("kind", "timeout")];
    bed.metric_becomes("listener_tls_handshake_failures_total", &labels, 2.0)
        .await;
    attach(&bed, install.trusting())
        .await
        .expect("the slots are free again");
}

#[tokio::test]
async fn a_handshake_that_hangs_does_not_hold_up_the_stop() {
    let install = Install::new();
    let bed = install.start().await;
    let _silent = TcpStream::connect(bed.agents()).await.unwrap();
    bed.metric_becomes("listener_connections", &[("listener", "agent")], 1.0)
        .await;
    let started = tokio::time::Instant::now();
    bed.stop().await;
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn boot_24_a_listener_that_could_not_serve_is_not_bound() {
    let install = Install::new();
    let other = install.authority.gateway();
    install.directory.write("gateway.key", &other.key);
    let mut config = install.setup.gateway;
    config.upstream.endpoints.clear();
    let error = Gateway::start(config).await.unwrap_err();
    let StartError::Credentials(text) = error else {
        panic!("{error}")
    };
    assert_eq!(
        text,
        "listener[0].tls.key_file names a key that does not belong to the certificate of cert_file"
    );
}

#[tokio::test]
async fn lsn_3_a_peer_that_is_silent_after_its_handshake_is_closed() {
    let install = Install::new();
    let setup = install.setup.clone();
    let bed = setup
        .agent_listener(|listener| listener.http2.idle_timeout = Duration::from_secs(1))
        .start()
        .await;
    let tcp = TcpStream::connect(bed.agents()).await.unwrap();
    let mut silent = install.trusting().connect(tcp).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
    // A reset is an end like any other.
    let _ = read.expect("the end of the connection");
    let no_preface = &[("reason", "no_preface")];
    bed.metric_becomes("listener_closed_total", no_preface, 1.0)
        .await;
}
