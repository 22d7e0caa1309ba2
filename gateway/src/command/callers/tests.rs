use super::*;

const MIB: usize = 1 << 20;

fn limits(buffer_bytes: usize) -> CallerLimits {
    CallerLimits {
        buffer_bytes,
        slow_timeout: Duration::from_secs(5),
    }
}

#[test]
fn cmd_22_the_pool_is_32_mib_or_four_times_the_bound_of_one() {
    assert_eq!(limits(8 * MIB).pool_bytes(), 32 * MIB);
    assert_eq!(limits(64 << 10).pool_bytes(), 32 * MIB);
    assert_eq!(limits(100 * MIB).pool_bytes(), 400 * MIB);
}

#[test]
fn cmd_22_the_more_passes_a_caller_by_the_less_time_it_has() {
    let whole = Duration::from_secs(5);
    let limits = limits(8 * MIB);
    assert_eq!(limits.patience(0), whole);
    assert_eq!(limits.patience(16 * MIB), whole);
    assert_eq!(limits.patience(16 * MIB + 1), STALL);
    assert_eq!(limits.patience(64 * MIB), STALL);
    assert_eq!(limits.patience(64 * MIB + 1), Duration::ZERO);
    let short = CallerLimits {
        slow_timeout: Duration::from_millis(100),
        ..limits
    };
    assert_eq!(short.patience(17 * MIB), Duration::from_millis(100));
}
