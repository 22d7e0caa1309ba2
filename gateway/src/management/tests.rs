use super::*;

#[test]
fn a_request_with_more_ids_than_any_realistic_one_is_refused_with_8() {
    assert!(check_agent_ids(MAX_AGENT_IDS).is_ok());
    let refused = check_agent_ids(MAX_AGENT_IDS + 1).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    // Tag, length and an id of 30 bytes: what fills a message of 8 MiB is not refused.
    assert_eq!((8 << 20) / (1 + 1 + 30), MAX_AGENT_IDS);
}
