use std::pin::pin;
use std::task::{Context, Waker};

use http_body::Body;
use yuzu_proto::wire::GRPC_PREFIX;

use super::*;

fn identity(name: &str, incarnation: u64) -> Identity {
    Identity {
        name: name.into(),
        incarnation,
        instance: [1; 16],
    }
}

#[test]
fn cluster_5_only_the_peer_that_was_asked_takes_an_offer_up() {
    let channels = Channels::new(&"a".into());
    let (b, c) = (identity("b", 7), identity("c", 7));
    let (sink, offers) = outgoing(None);
    let _way = channels.register(&b.name, Way::Offer(b.clone(), Arc::new(sink)));
    let channel = channels.try_open("b").unwrap();
    channel.sink.push(grpc::frame(b"first"));
    let mut cx = Context::from_waker(Waker::noop());
    let std::task::Poll::Ready(Some(Ok(frame))) = pin!(offers).poll_frame(&mut cx) else {
        panic!("no offer");
    };
    let message = frame.into_data().unwrap().slice(GRPC_PREFIX..);
    let number = ForwardOffer::decode(message).unwrap().offer;
    assert!(channels.take_offer(number, &c).is_none());
    assert!(channels.take_offer(number, &identity("b", 6)).is_none());
    assert!(channels.take_offer(number, &b).is_some());
    assert!(channels.take_offer(number, &b).is_none(), "and only once");
}

#[test]
fn fwd_5_offers_that_nobody_reads_find_a_bound() {
    let channels = Channels::new(&"a".into());
    let b = identity("b", 7);
    let (sink, offers) = outgoing(None);
    let _way = channels.register(&b.name, Way::Offer(b.clone(), Arc::new(sink)));
    // Whoever wanted them has given up: that takes none of them back.
    for _ in 0..MAX_UNREAD {
        let channel = channels.try_open("b").unwrap();
        channel.sink.push(grpc::frame(b"first"));
    }
    assert!(channels.try_open("b").is_none());
    let mut cx = Context::from_waker(Waker::noop());
    let mut offers = pin!(offers);
    assert!(offers.as_mut().poll_frame(&mut cx).is_ready());
    assert!(channels.try_open("b").is_some());
}

#[tokio::test(start_paused = true)]
async fn fwd_5_who_waits_for_offers_to_be_read_goes_on_when_they_are() {
    let channels = Channels::new(&"a".into());
    let b = identity("b", 7);
    let (sink, offers) = outgoing(None);
    let _way = channels.register(&b.name, Way::Offer(b.clone(), Arc::new(sink)));
    for _ in 0..MAX_UNREAD {
        let channel = channels.try_open("b").unwrap();
        channel.sink.push(grpc::frame(b"first"));
    }
    let mut waits = pin!(Arc::clone(&channels).open("b".into()));
    let early = tokio::time::timeout(LOOK * 3, waits.as_mut()).await;
    assert!(early.is_err());
    let mut cx = Context::from_waker(Waker::noop());
    let mut offers = pin!(offers);
    assert!(offers.as_mut().poll_frame(&mut cx).is_ready());
    let opened = tokio::time::timeout(LOOK * 2, waits).await;
    assert!(opened.is_ok());
}
