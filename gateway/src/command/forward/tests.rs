use std::time::Duration;

use super::*;

#[test]
fn fwd_5_nothing_is_sent_without_a_millisecond_of_the_caller_s_time() {
    let now = Instant::now();
    let command = Forwarded {
        frame: Bytes::new(),
        command_id: Bytes::new(),
        caller: String::new(),
        deadline: now + Duration::from_millis(10),
    };
    let left_after = |micros| command.left_ms(now + Duration::from_micros(micros));
    assert_eq!(left_after(0), Some(10));
    assert_eq!(left_after(9_000), Some(1));
    assert_eq!(left_after(9_001), None);
    assert_eq!(left_after(20_000), None);
}
