//! Agents whose certificates are enforced: each speaks for its own id, and without a certificate
//! only enrols.

use std::time::Duration;
use yuzu_gateway::config::{ClientAuth, ListenerTls, Service};
use yuzu_tests::agent::{Agent, PATIENCE, SubscribeError};
use yuzu_tests::certs::{Authority, Directory, Leaf, Wish};
use yuzu_tests::raw::{Options, Tls, code};
use yuzu_tests::testbed::{Setup, TestBed};

struct Install {
    authority: Authority,
    directory: Directory,
    bed: TestBed,
}

impl Install {
    async fn start() -> Self {
        let authority = Authority::new("install");
        let directory = Directory::new();
        let (cert_file, key_file) = directory.write_leaf("gateway", &authority.gateway());
        let tls = ListenerTls {
            cert_file,
            key_file,
            ca_file: directory.write("ca.pem", &authority.pem()),
            client_auth: ClientAuth::Request,
            enforce_agent_identity: true,
            crl_files: vec![directory.write("crl.pem", &authority.revoke(&[]))],
            ..ListenerTls::of(&[Service::Agent])
        };
        let setup = Setup::default().gateway(|config| {
            config.listeners[0].tls = Some(tls);
            config.management.pin_refresh = Duration::from_millis(50);
        });
        Self {
            authority,
            directory,
            bed: setup.start().await,
        }
    }

    async fn connect(&self, id: &str, leaf: Option<&Leaf>) -> Agent {
        let ca = self.authority.pem();
        let tls = match leaf {
            None => Tls::trusting(&ca),
            Some(leaf) => Tls::presenting(&ca, &leaf.certificate, &leaf.key),
        };
        let options = Options {
            tls: Some(tls.unwrap()),
            ..Options::default()
        };
        let connected = Agent::connect_with(self.bed.agents(), id, &options).await;
        connected.expect("a connection")
    }

    async fn rejected(&self, reason: &str) -> f64 {
        let labels = [("reason", reason)];
        self.bed
            .metric("agent_identity_rejected_total", &labels)
            .await
    }
}

fn refused(result: Result<impl Sized, SubscribeError>) -> u16 {
    match result {
        Ok(_) => panic!("subscribed"),
        Err(error) => error.code().expect("a status"),
    }
}

#[tokio::test]
async fn an_agent_speaks_for_the_id_in_its_certificate() {
    let install = Install::start().await;
    let own = install.authority.agent("agent-1");
    let mut agent = install.connect("agent-1", Some(&own)).await;
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    assert_eq!(agent.heartbeat().await.unwrap().status.code, code::OK);
    assert_eq!(agent.inventory().await.unwrap().status.code, code::OK);

    let mut other = install.connect("agent-2", Some(&own)).await;
    let error = other.register().await.expect_err("another agent's id");
    assert!(error.contains("does not name this agent"), "{error}");
    for odd in [install.authority.gateway(), install.authority.server()] {
        let mut stranger = install.connect("agent-1", Some(&odd)).await;
        stranger.register().await.unwrap_err();
    }
    let foreign = format!("yuzu://{}/agent/agent-1", "AB".repeat(32));
    let foreign = install
        .authority
        .issue(Wish::host("x").client_only().uri(&foreign));
    install
        .connect("agent-1", Some(&foreign))
        .await
        .register()
        .await
        .unwrap_err();
    assert_eq!(install.rejected("identity_mismatch").await, 4.0);
}

#[tokio::test]
async fn without_a_certificate_an_agent_may_enrol_and_nothing_else() {
    let install = Install::start().await;
    let mut fresh = install.connect("agent-1", None).await;
    fresh.register().await.unwrap();
    let session = fresh.session_id.clone();
    assert_eq!(
        refused(fresh.subscribe_as(&session).await),
        code::UNAUTHENTICATED
    );
    assert_eq!(
        fresh.heartbeat().await.unwrap().status.code,
        code::UNAUTHENTICATED
    );
    assert_eq!(
        fresh.inventory().await.unwrap().status.code,
        code::UNAUTHENTICATED
    );
    assert_eq!(install.rejected("no_certificate").await, 3.0);

    let stranger = install.authority.agent("agent-2");
    let stranger = install.connect("agent-2", Some(&stranger)).await;
    let denied = refused(stranger.subscribe_as(&session).await);
    assert_eq!(
        denied,
        code::PERMISSION_DENIED,
        "the session of another agent"
    );

    let own = install.authority.agent("agent-1");
    let enrolled = install.connect("agent-1", Some(&own)).await;
    enrolled
        .subscribe_as(&session)
        .await
        .expect("the row was not used up");
}

#[tokio::test]
async fn a_withdrawn_agent_s_calls_are_refused_on_its_open_connection() {
    let install = Install::start().await;
    let own = install.authority.agent("agent-1");
    let mut agent = install.connect("agent-1", Some(&own)).await;
    agent.register().await.unwrap();
    agent.subscribe().await.unwrap();
    install
        .directory
        .write("crl.pem", &install.authority.revoke(&[&own]));
    let reached = async {
        while agent.heartbeat().await.unwrap().status.code == code::OK {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("the list is followed");
    assert!(install.rejected("revoked").await >= 1.0);
}
