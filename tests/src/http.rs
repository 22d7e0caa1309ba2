//! A GET over HTTP/1.1, for the metrics and health endpoints.

use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest body read.
const BODY_BYTES: usize = 16 << 20;

const LIMIT: Duration = Duration::from_secs(10);

/// Asks `address` for `path`; the status, the `content-type` and the body.
///
/// # Errors
/// What went wrong, as text.
pub async fn get(address: SocketAddr, path: &str) -> Result<Answer, String> {
    let answer = async {
        let tcp = tokio::net::TcpStream::connect(address)
            .await
            .map_err(|e| e.to_string())?;
        let io = TokioIo::new(tcp);
        let (mut requests, driver) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|e| e.to_string())?;
        let driver = tokio::spawn(driver);
        let request = http::Request::get(path)
            .header("host", address.to_string())
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|e| e.to_string())?;
        let response = requests
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, BODY_BYTES)
            .collect()
            .await
            .map_err(|e| e.to_string())?;
        driver.abort();
        let body = String::from_utf8(body.to_bytes().into()).map_err(|e| e.to_string())?;
        let content_type = parts
            .headers
            .get("content-type")
            .and_then(|v| v.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        Ok(Answer {
            status: parts.status.as_u16(),
            content_type,
            body,
        })
    };
    tokio::time::timeout(LIMIT, answer)
        .await
        .map_err(|_| "no answer in time".to_owned())?
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The `content-type` header; empty when absent.
    pub content_type: String,
    /// The body.
    pub body: String,
}
