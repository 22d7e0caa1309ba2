//! TLS on the command line: of the listener, and of the operator's connection.

mod common;

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use http::{Response, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::{Channel, Endpoint};
use yuzu_server_stub::tls::{self, Identity};

/// A CA, and two certificates of it: `server` for 127.0.0.1 and `client`.
struct Install(PathBuf);

impl Install {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("yuzu-stub-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(path.join("ca.pem"), ca.pem()).unwrap();
        for (leaf, name) in [("server", "127.0.0.1"), ("client", "operator")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &ca).unwrap();
            std::fs::write(path.join(format!("{leaf}.pem")), certificate.pem()).unwrap();
            std::fs::write(path.join(format!("{leaf}.key")), key.serialize_pem()).unwrap();
        }
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn client(&self, shows: bool) -> Arc<rustls::ClientConfig> {
        let (certificate, key) = (self.0.join("client.pem"), self.0.join("client.key"));
        let own = Identity {
            certificate: &certificate,
            key: &key,
        };
        tls::client(&self.0.join("ca.pem"), shows.then_some(own)).unwrap()
    }
}

impl Drop for Install {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stub() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yuzu-server-stub"));
    command.stdin(Stdio::null());
    command
}

async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// Killed when the test ends.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn channel(address: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Option<Channel> {
    let connect = tower::service_fn(move |_: Uri| {
        let connector = TlsConnector::from(Arc::clone(&tls));
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::from(address.ip());
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let endpoint = Endpoint::from_static("http://stub");
    endpoint.connect_with_connector(connect).await.ok()
}

#[tokio::test]
async fn serve_asks_gateways_for_a_certificate_of_the_given_ca() {
    let install = Install::new("serve");
    let mut child = stub()
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ])
        .args(["--tls-cert", &install.path("server.pem")])
        .args(["--tls-key", &install.path("server.key")])
        .args(["--tls-client-ca", &install.path("ca.pem")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    let _serving = Serving(child);
    let address = first.trim().rsplit(' ').next().unwrap().parse().unwrap();
    let register = async |shows| {
        let channel = channel(address, install.client(shows)).await?;
        let mut client = common::Client::new(channel);
        client.proxy_register(common::registration("a1")).await.ok()
    };
    let answer = register(true).await.expect("an answer").into_inner();
    assert!(answer.accepted);
    assert!(register(false).await.is_none(), "without a certificate");
}

/// A management listener over mutual TLS that serves no method.
async fn gateway(install: &Install) -> SocketAddr {
    let (certificate, key) = (install.0.join("server.pem"), install.0.join("server.key"));
    let own = Identity {
        certificate: &certificate,
        key: &key,
    };
    let served = tls::server(own, Some(&install.0.join("ca.pem"))).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(Arc::clone(&served));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let unserved = service_fn(async |_| {
                    let answer = Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", "12");
                    Ok::<_, Infallible>(answer.body(Empty::<Bytes>::new()).unwrap())
                });
                let builder = http2::Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection(TokioIo::new(stream), unserved)
                    .await;
            });
        }
    });
    address
}

#[tokio::test]
async fn an_operator_shows_its_certificate_and_verifies_the_gateway() {
    let install = Install::new("operator");
    let address = gateway(&install).await.to_string();
    let (ca, cert, key) = (
        install.path("ca.pem"),
        install.path("client.pem"),
        install.path("client.key"),
    );
    let mutual = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let ask = async |options: &[&str]| {
        let mut command = stub();
        command
            .args(["agents", "--gateway", &address])
            .args(options);
        let output = output(command).await;
        assert_eq!(output.status.code(), Some(3));
        String::from_utf8(output.stderr).unwrap()
    };
    let reached = "the gateway ended the call with Unimplemented";
    let told = ask(&mutual).await;
    assert!(told.contains(reached), "{told}");
    for refused in [
        &mutual[..2],
        &[],
        &[&mutual[..], &["--tls-name", "elsewhere"]].concat(),
    ] {
        let told = ask(refused).await;
        assert!(!told.contains(reached), "{refused:?}: {told}");
    }
    let told = ask(&[&mutual[..], &["--tls-name", "elsewhere"]].concat()).await;
    assert!(told.contains("certificate"), "the cause is told: {told}");
}

#[tokio::test]
async fn files_that_give_no_tls_are_named() {
    let install = Install::new("files");
    let (ca, cert, key) = (
        install.path("ca.pem"),
        install.path("server.pem"),
        install.path("server.key"),
    );
    let tell = async |arguments: &[&str]| {
        let mut command = stub();
        command.args(arguments);
        let output = output(command).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let none = install.path("none.pem");
    let told = tell(&["agents", "--tls-ca", &none]).await;
    assert!(told.contains(&none), "{told}");
    let told = tell(&["serve", "--tls-cert", &key, "--tls-key", &cert]).await;
    assert!(
        told.contains("server.key: holds no PEM certificate"),
        "{told}"
    );
    let told = tell(&["agents", "--tls-ca", &ca, "--tls-cert", &cert]).await;
    assert!(told.contains("--tls-key"), "{told}");
    let told = tell(&["agents", "--tls-cert", &cert, "--tls-key", &key]).await;
    assert!(
        told.contains("--tls-ca"),
        "never plaintext by mistake: {told}"
    );
}
