//! The verbatim codec inside tonic's framing.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use proptest::collection::vec;
use proptest::prelude::*;
use tonic::codec::{Codec, EncodeBody, Streaming};
use yuzu_proto::verbatim::VerbatimCodec;
use yuzu_proto::wire;

/// What a client sends for `messages`.
async fn sent(messages: Vec<Bytes>) -> Bytes {
    let source = tokio_stream::iter(messages.into_iter().map(Ok));
    let body = EncodeBody::new_client(VerbatimCodec.encoder(), source, None, None);
    body.collect().await.expect("encodes").to_bytes()
}

/// The messages that a server reads out of `body`.
async fn received(body: Bytes) -> Vec<Bytes> {
    let body = Full::new(body);
    let mut stream = Streaming::new_request(VerbatimCodec.decoder(), body, None, None);
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.expect("decodes") {
        messages.push(message);
    }
    messages
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Not even well-formed messages: whatever the bytes are, they pass.
    #[test]
    fn bytes_pass_both_ways_unchanged(
        messages in vec(vec(any::<u8>(), 0..3000).prop_map(Bytes::from), 0..5)
    ) {
        let mut framed = Vec::new();
        for message in &messages {
            wire::put_grpc_prefix(&mut framed, message.len());
            framed.extend_from_slice(message);
        }
        let (on_the_wire, back) = block_on(async {
            let on_the_wire = sent(messages.clone()).await;
            (on_the_wire.clone(), received(on_the_wire).await)
        });
        prop_assert_eq!(&on_the_wire[..], &framed[..]);
        prop_assert_eq!(back, messages);
    }
}
