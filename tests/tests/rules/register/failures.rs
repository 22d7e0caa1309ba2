//! REG-12 to REG-14: registers that come to nothing.

use super::*;

#[tokio::test]
async fn reg_12_a_full_queue_and_a_passed_deadline_are_14_and_never_sent() {
    let setup = Setup::default().gateway(|config| {
        config.upstream.register_concurrency = 1;
        config.upstream.replay_concurrency = 1;
        config.upstream.register_queue = 1;
    });
    let bed = setup.start().await;
    bed.server.fault(hang()).unwrap();
    let (first, second) = (bed.bare_agent("a").await, bed.bare_agent("b").await);
    let third = bed.bare_agent("c").await;
    let holding = register(&first, "a");
    tokio::pin!(holding);
    let refusals = async {
        hung(&bed, 1).await;
        // 1.2 s less a sixth: the gateway gives up after 1 s, before the agent does.
        let waiting = register_within(&second, Duration::from_millis(1_200));
        let full = async {
            let class = [("class", "register")];
            bed.metric_becomes("upstream_permits_waiting", &class, 1.0)
                .await;
            register_within(&third, Duration::from_secs(10)).await
        };
        tokio::join!(waiting, full)
    };
    let (late, full) = tokio::select! {
        both = refusals => both,
        _ = &mut holding => panic!("the first register hangs"),
    };
    assert_eq!(late.status.code, code::UNAVAILABLE, "{}", late.status);
    assert_eq!(full.status.code, code::UNAVAILABLE, "{}", full.status);
    for reason in ["queue_full", "deadline"] {
        let labels = [("class", "register"), ("reason", reason)];
        assert_eq!(
            bed.metric("upstream_permit_refused_total", &labels).await,
            1.0,
            "{reason}"
        );
    }
    let class = [("class", "register")];
    assert_eq!(
        bed.metric("upstream_calls_dropped_total", &class).await,
        1.0
    );
    assert_eq!(received(&bed), 1, "neither was sent");
}

#[tokio::test]
async fn reg_12_an_open_breaker_is_14_without_a_call() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let broken = Action::Status(Code::Internal, "broken".into());
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, broken))
        .unwrap();
    for _ in 0..5 {
        assert_eq!(register(&agent, "a").await.status.code, code::INTERNAL);
    }
    assert_eq!(register(&agent, "a").await.status.code, code::UNAVAILABLE);
    assert_eq!(received(&bed), 5);
    let (status, body) = bed.ready().await;
    assert_eq!(
        (status, &body["checks"]["circuit_breaker"]),
        (503, &false.into())
    );
}

#[tokio::test]
async fn reg_12_whatever_status_the_server_gives_the_agent_sees_13() {
    for status in [
        Code::Cancelled,
        Code::NotFound,
        Code::Unavailable,
        Code::Unauthenticated,
    ] {
        let bed = TestBed::start().await;
        let agent = bed.bare_agent("a").await;
        let fault = Action::Status(status, "a secret of the server".into());
        bed.server
            .fault(Fault::new(Rpc::ProxyRegister, fault))
            .unwrap();
        let answer = register(&agent, "a").await;
        assert_eq!(
            answer.status.code,
            code::INTERNAL,
            "{status:?}: {}",
            answer.status
        );
        let number = (status as i32).to_string();
        let labels = [("rpc_name", "register"), ("code", number.as_str())];
        assert_eq!(bed.metric("upstream_rpc_errors_total", &labels).await, 1.0);
    }
}

#[tokio::test]
async fn reg_12_without_a_server_a_register_is_13_at_once() {
    let bed = TestBed::start().await;
    bed.server.kill().await;
    let agent = bed.bare_agent("a").await;
    let started = std::time::Instant::now();
    assert_eq!(register(&agent, "a").await.status.code, code::INTERNAL);
    // The bound of a call is 5 s; with nothing to wait for it must not be used up.
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn reg_13_an_ok_without_a_decodable_message_is_13_and_counts_as_a_failure() {
    for garbage in [
        Garbage::Message,
        Garbage::Frame,
        Garbage::Compressed,
        Garbage::Http,
        Garbage::NoStatus,
    ] {
        let bed = TestBed::start().await;
        let agent = bed.bare_agent("a").await;
        bed.server
            .fault(Fault::new(Rpc::ProxyRegister, Action::Garbage(garbage)))
            .unwrap();
        for _ in 0..5 {
            let status = register(&agent, "a").await.status;
            assert_eq!(status.code, code::INTERNAL, "{garbage:?}: {status}");
        }
        let status = register(&agent, "a").await.status;
        assert_eq!(
            status.code,
            code::UNAVAILABLE,
            "{garbage:?}: five failures open the breaker"
        );
    }
}

#[tokio::test]
async fn reg_14_a_register_that_is_reset_frees_its_permit_its_place_and_its_slot() {
    let setup = Setup::default().gateway(|config| {
        config.upstream.register_concurrency = 1;
        config.upstream.replay_concurrency = 1;
        config.session.max_per_connection = 1;
    });
    let bed = setup.start().await;
    bed.server.fault(hang().times(1)).unwrap();
    let (first, second) = (bed.bare_agent("a").await, bed.bare_agent("b").await);
    {
        let (holding, waiting) = (register(&first, "a"), register(&second, "b"));
        let seen = async {
            hung(&bed, 1).await;
            let class = [("class", "register")];
            bed.metric_becomes("upstream_permits_waiting", &class, 1.0)
                .await;
        };
        tokio::select! {
            () = seen => {}
            _ = holding => panic!("the first register hangs"),
            _ = waiting => panic!("the second register waits"),
        }
        // Both calls are dropped here, which resets their streams.
    }
    let class = [("class", "register")];
    bed.metric_becomes("upstream_permits_held", &class, 0.0)
        .await;
    bed.metric_becomes("upstream_permits_waiting", &class, 0.0)
        .await;
    // One slot per connection: the reservation of the dropped call is gone as well.
    assert!(register(&first, "other").await.status.is_ok());
    assert!(register(&second, "b").await.status.is_ok());
}

#[tokio::test]
async fn reg_14_a_lost_connection_frees_the_permit() {
    let setup = Setup::default().gateway(|config| {
        config.upstream.register_concurrency = 1;
        config.upstream.replay_concurrency = 1;
    });
    let bed = setup.start().await;
    bed.server.fault(hang().times(1)).unwrap();
    let (first, second) = (bed.bare_agent("a").await, bed.bare_agent("b").await);
    let lost = async {
        hung(&bed, 1).await;
        first.connection.abort();
    };
    let message = request("a").encode_to_vec();
    let (holding, ()) = tokio::join!(first.register_raw(&message), lost);
    assert!(holding.is_err());
    let answer = soon("the permit", register(&second, "b")).await;
    assert!(answer.status.is_ok(), "{}", answer.status);
}

#[tokio::test]
async fn reg_14_the_result_of_a_dropped_register_is_discarded() {
    let bed = TestBed::start().await;
    let agent = bed.bare_agent("a").await;
    let known = Action::Answer(accepted(&session_id('2')).encode_to_vec().into());
    bed.server.fault(hang().times(1)).unwrap();
    bed.server
        .fault(Fault::new(Rpc::ProxyRegister, known).times(1))
        .unwrap();
    tokio::select! {
        _ = register(&agent, "a") => panic!("it hangs"),
        () = hung(&bed, 1) => {}
    }
    bed.server.release(None);
    let settled =
        |s: &yuzu_server_stub::State| (s.counts(Rpc::ProxyRegister).in_flight == 0).then_some(());
    bed.server
        .wait_for("the call's end", PATIENCE, settled)
        .await
        .unwrap();
    let subscribed = agent.subscribe_as(&session_id('2')).await;
    assert_eq!(subscribed.unwrap_err().code(), Some(code::NOT_FOUND));
}
