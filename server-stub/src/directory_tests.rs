use yuzu_proto::agent::v1::AgentInfo;

use super::*;

const A1: &str = "gw-session-000000000000000000000000000000a1";
const A2: &str = "gw-session-000000000000000000000000000000a2";
const B1: &str = "gw-session-000000000000000000000000000000b1";

fn directory() -> Directory {
    Directory::new(Enrolment::Open, None, 100)
}

fn request(agent: &str) -> RegisterRequest {
    let info = AgentInfo {
        agent_id: agent.into(),
        ..Default::default()
    };
    RegisterRequest {
        info: Some(info),
        ..Default::default()
    }
}

fn fresh(directory: &mut Directory, agent: &str, minted: &str) {
    let response = directory.register(&request(agent), None, minted).unwrap();
    assert!(response.accepted);
    assert_eq!(response.session_id, minted);
}

fn adopt(directory: &mut Directory, agent: &str, session: &str) -> Result<bool, Code> {
    let response = directory.register(&request(agent), Some(session), "unused");
    response
        .map(|r| r.accepted && r.session_id == session)
        .map_err(|status| status.code())
}

fn notice(agent: &str, session: &str, event: Event, home: &str) -> StreamStatusNotification {
    StreamStatusNotification {
        agent_id: agent.into(),
        session_id: session.into(),
        event: event as i32,
        gateway_node: "yuzu_gw@10.0.0.1".into(),
        stream_home_id: home.into(),
        cluster_id: "c1".into(),
        wire_capabilities: vec!["command_dispatch_tag_v1".into()],
        ..Default::default()
    }
}

fn state(directory: &Directory, agent: &str) -> RouteState {
    directory.route(agent).unwrap().state
}

#[test]
fn minted_sessions_have_the_form_of_the_contract() {
    let id = session_id([0xab; 16]);
    assert_eq!(id, "gw-session-abababababababababababababababab");
    assert_eq!(id.len(), 43);
    assert!(is_minted_form(&id));
    for malformed in [
        "",
        "gw-session-",
        &id[..42],
        "gw-session-ABABABABABABABABABABABABABABABAB",
    ] {
        assert!(!is_minted_form(malformed), "{malformed}");
    }
}

#[test]
fn agent_ids_are_held_against_the_rules_of_the_server() {
    let mut directory = directory();
    let mut code = |agent: &str, presented: Option<&str>| {
        let response = directory.register(&request(agent), presented, A1);
        response.map(|_| ()).map_err(|status| status.code())
    };
    let longest = "x".repeat(256);
    assert_eq!(code(&longest, None), Ok(()));
    for bad in ["", "a,b", "a\nb", "a b", "ä", &"x".repeat(257)] {
        assert_eq!(code(bad, None), Err(Code::InvalidArgument), "{bad}");
    }
    assert_eq!(
        code("a b", Some(A2)),
        Ok(()),
        "an id that is not new may hold more"
    );
}

#[test]
fn enrolment_decides_over_fresh_and_presented_registrations() {
    let mut directory = directory();
    directory.enrolment = Enrolment::Tokens(HashSet::from(["good".to_owned()]));
    let mut with_token = request("a");
    with_token.enrollment_token = "good".into();
    let enrolled = directory.register(&with_token, None, A1).unwrap();
    assert_eq!(
        (enrolled.accepted, enrolled.enrollment_status.as_str()),
        (true, "enrolled")
    );
    with_token.enrollment_token = "bad".into();
    for presented in [None, Some(A1)] {
        let denied = directory.register(&with_token, presented, A2).unwrap();
        assert!(!denied.accepted);
        assert_eq!(denied.reject_reason, "invalid token");
        assert_eq!(denied.enrollment_status, "denied");
        assert_eq!(denied.session_id, "");
    }
    directory.enrolment = Enrolment::Pending;
    let pending = directory.register(&request("b"), None, B1).unwrap();
    assert!(!pending.accepted && pending.reject_reason.contains("pending"));
    assert_eq!(pending.enrollment_status, "pending");
    directory.enrolment = Enrolment::Denied;
    let denied = directory.register(&request("b"), None, B1).unwrap();
    assert!(!denied.accepted && !denied.reject_reason.contains("pending"));
    assert!(directory.route("b").is_none());
}

#[test]
fn a_presented_session_is_adopted_or_refused_with_9() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    assert_eq!(
        adopt(&mut directory, "a", "gw-session-xyz"),
        Err(Code::FailedPrecondition)
    );
    assert_eq!(
        adopt(&mut directory, "b", A1),
        Err(Code::FailedPrecondition),
        "held by another"
    );
    assert_eq!(
        adopt(&mut directory, "a", A2),
        Err(Code::FailedPrecondition),
        "superseded"
    );
    assert_eq!(adopt(&mut directory, "a", A1), Ok(true), "renewed");
    directory.restart(Restart::default());
    assert!(!directory.knows(A1));
    assert_eq!(
        adopt(&mut directory, "b", A1),
        Err(Code::FailedPrecondition),
        "the row remains"
    );
    assert_eq!(adopt(&mut directory, "a", A1), Ok(true), "reclaimed");
    assert!(directory.knows(A1));
}

#[test]
fn a_lost_directory_lets_any_agent_adopt() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    directory.restart(Restart {
        lose_directory: true,
        ..Restart::default()
    });
    assert_eq!(adopt(&mut directory, "b", A1), Ok(true));
}

#[test]
fn an_agent_whose_stream_ended_may_present_another_session() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    assert!(directory.notify(&notice("a", A1, Event::Disconnected, "h1")));
    assert_eq!(adopt(&mut directory, "a", A2), Ok(true));
}

#[test]
fn adoption_loses_the_placement_until_a_connected_follows() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    assert!(directory.notify(&notice("a", A1, Event::Connected, "h1")));
    assert_eq!(
        directory.route("a").unwrap().gateway_node,
        "yuzu_gw@10.0.0.1"
    );
    assert_eq!(adopt(&mut directory, "a", A1), Ok(true));
    let route = directory.route("a").unwrap();
    assert_eq!(
        (route.state, route.gateway_node.as_str()),
        (RouteState::Registered, "")
    );
    assert_eq!(
        (route.stream_home_id.as_str(), route.wire_capabilities.len()),
        ("", 0)
    );
    assert!(directory.notify(&notice("a", A1, Event::Connected, "h1")));
    assert_eq!(state(&directory, "a"), RouteState::Connected);
}

#[test]
fn a_disconnected_of_another_stream_is_acknowledged_and_ignored() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    assert!(directory.notify(&notice("a", A1, Event::Connected, "h2")));
    assert!(directory.notify(&notice("a", A1, Event::Disconnected, "h1")));
    assert_eq!(state(&directory, "a"), RouteState::Connected);
    assert!(directory.notify(&notice("a", A1, Event::Disconnected, "h2")));
    assert_eq!(state(&directory, "a"), RouteState::Disconnected);
}

#[test]
fn notices_that_are_not_acknowledged() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    fresh(&mut directory, "b", B1);
    assert!(
        !directory.notify(&notice("a", A2, Event::Connected, "h")),
        "unknown session"
    );
    assert!(
        !directory.notify(&notice("a", A2, Event::Disconnected, "h")),
        "unknown session"
    );
    assert!(
        !directory.notify(&notice("a", B1, Event::Connected, "h")),
        "held by another agent"
    );
    let mut unknown_event = notice("a", A1, Event::Connected, "h");
    unknown_event.event = 7;
    assert!(!directory.notify(&unknown_event));
    assert!(directory.notify(&notice("a", A1, Event::Connected, "h")));
    let mut other_cluster = notice("a", A1, Event::Connected, "h");
    other_cluster.cluster_id = "c2".into();
    assert!(!directory.notify(&other_cluster), "bound to c1");
    fresh(&mut directory, "a", A2);
    assert!(
        !directory.notify(&notice("a", A1, Event::Connected, "h")),
        "no longer current"
    );
    assert!(
        directory.notify(&notice("a", A1, Event::Disconnected, "h")),
        "still known"
    );
    assert_eq!(
        state(&directory, "a"),
        RouteState::Registered,
        "the new session is untouched"
    );
    directory.restart(Restart::default());
    assert!(
        !directory.notify(&notice("a", A2, Event::Connected, "h")),
        "forgotten"
    );
}

#[test]
fn labels_over_64_bytes_are_clamped() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    let mut long = notice("a", A1, Event::Connected, &"h".repeat(65));
    long.cluster_id = "c".repeat(65);
    assert!(directory.notify(&long));
    let route = directory.route("a").unwrap();
    assert_eq!(
        (route.cluster_id.as_str(), route.stream_home_id.as_str()),
        ("unknown", "")
    );
}

#[test]
fn a_verdict_lists_unknown_sessions_once_and_skips_unusable_ids() {
    let mut directory = directory();
    fresh(&mut directory, "a", A1);
    let long = "x".repeat(65);
    let just_fits = "y".repeat(64);
    let ids = [A1, "u1", "u1", "", &long, &just_fits, A1];
    let beat = |id: &&str| HeartbeatRequest {
        session_id: (*id).into(),
        ..Default::default()
    };
    let beats: Vec<_> = ids.iter().map(beat).collect();
    let response = directory.heartbeats(&beats);
    assert_eq!(response.acknowledged_count, 2);
    assert_eq!(response.unknown_session_ids, ["u1".to_owned(), just_fits]);
    assert!(!response.unknown_session_ids_truncated);
}

#[test]
fn a_verdict_names_at_most_4096_sessions() {
    let ids: Vec<String> = (0..4097).map(|n| format!("u{n}")).collect();
    let of = |ids: &[String]| verdict(ids.iter().map(String::as_str), |_| false);
    let fits = of(&ids[..4096]);
    assert_eq!(
        (
            fits.unknown_session_ids.len(),
            fits.unknown_session_ids_truncated
        ),
        (4096, false)
    );
    let cut = of(&ids);
    assert_eq!(
        (
            cut.unknown_session_ids.len(),
            cut.unknown_session_ids_truncated
        ),
        (4096, true)
    );
}

#[test]
fn the_directory_is_bounded_in_agents_and_in_older_sessions() {
    let mut directory = Directory::new(Enrolment::Open, None, 1);
    for n in 0..20_u8 {
        fresh(&mut directory, "a", &session_id([n; 16]));
    }
    assert_eq!(directory.known_sessions(), 1 + OLDER_SESSIONS);
    assert!(directory.knows(&session_id([11; 16])) && !directory.knows(&session_id([10; 16])));
    let full = directory.register(&request("b"), None, B1).unwrap_err();
    assert_eq!(full.code(), Code::Unavailable);
}

#[test]
fn a_csr_is_answered_only_when_configured() {
    let mut directory = directory();
    let mut with_csr = request("a");
    with_csr.csr_pem = "csr".into();
    assert_eq!(
        directory
            .register(&with_csr, None, A1)
            .unwrap()
            .issued_certificate,
        ""
    );
    directory.issued = Some(IssuedCertificate::dummy());
    let issued = directory.register(&with_csr, None, A2).unwrap();
    assert!(issued.issued_certificate.contains("not real"));
    assert!(issued.issued_ca_chain.contains("not real"));
    let without = directory.register(&request("b"), None, B1).unwrap();
    assert_eq!(without.issued_certificate, "");
}
