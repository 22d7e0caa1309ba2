//! One unary call over the connection to a peer.
//!
//! Responsible for framing one message each way and for the status. Must never wait longer than its
//! caller says, nor take an answer of more than a few KiB.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Request, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::SendRequest;
use prost::Message;
use tonic::{Code, Status};

use super::failure::Failure;
use crate::edge::deframe::Deframer;
use crate::edge::grpc;

/// What a peer answers.
const MAX_ANSWER: usize = 64 << 10;

/// Calls `path` of the node at `authority`.
///
/// # Errors
/// The peer refused, or its answer is none.
pub(super) async fn call<A: Message + Default>(
    calls: &mut SendRequest<tonic::body::Body>,
    path: &'static str,
    message: &impl Message,
) -> Result<A, Failure> {
    let body = Full::new(grpc::frame(&message.encode_to_vec()));
    let request = request(path, tonic::body::Body::new(body))?;
    let answer = calls
        .send_request(request)
        .await
        .map_err(|_| Failure::Refused)?;
    let (head, body) = answer.into_parts();
    judge(&head.headers)?;
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|_| Failure::Refused)?;
    judge(body.trailers().unwrap_or(&HeaderMap::new()))?;
    decode(body.to_bytes())
}

/// The request of a call with this body, whichever kind the call is.
pub(in crate::cluster) fn request(
    path: &'static str,
    body: tonic::body::Body,
) -> Result<Request<tonic::body::Body>, Failure> {
    let mut request = Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = format!("http://node{path}")
        .parse()
        .map_err(|_| Failure::Protocol)?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    Ok(request)
}

/// What the headers or the trailers of an answer say.
pub(in crate::cluster) fn judge(headers: &HeaderMap) -> Result<(), Failure> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(Failure::told(&status)),
        _ => Ok(()),
    }
}

fn decode<A: Message + Default>(body: Bytes) -> Result<A, Failure> {
    let mut frames = Deframer::new(MAX_ANSWER);
    frames.push(body);
    let message = frames.next().ok().flatten().ok_or(Failure::Protocol)?;
    A::decode(message).map_err(|_| Failure::Protocol)
}
