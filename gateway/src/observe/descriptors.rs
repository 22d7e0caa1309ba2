//! How many connections the descriptor limit leaves room for (LSN-13).
//!
//! Responsible for raising the soft limit and for dividing what it leaves among the listeners.
//! Must never decide what happens at a ceiling: that is the listener.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors kept for everything that is no connection of a listener: 64 on each of the health
/// and metrics ports, the connections to the server, listening sockets, files, the runtime's own.
pub const RESERVE: u64 = 256;

/// Raises the soft limit on open descriptors to the hard one and returns the limit then in force,
/// `None` for no limit.
///
/// # Errors
/// What the system says when it refuses; the limit is what it was.
pub fn raise_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        )?;
    }
    Ok(limit.maximum)
}

/// The limit on open descriptors in force; `None` for no limit.
pub fn current_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The connection ceilings in force: for each `max_connections` of `wanted` that value, or less
/// when all together would need more than `limit` leaves after `reserve`. Listeners that want
/// little get it in full, the rest is shared evenly among the others. Each gets at least 1, so
/// that no listener is shut by a small limit alone.
pub fn ceilings(wanted: &[usize], limit: Option<u64>, reserve: u64) -> Vec<usize> {
    let Some(limit) = limit else {
        return wanted.to_vec();
    };
    let mut left = usize::try_from(limit.saturating_sub(reserve)).unwrap_or(usize::MAX);
    let mut ceilings = wanted.to_vec();
    let mut by_size: Vec<usize> = (0..wanted.len()).collect();
    by_size.sort_by_key(|listener| wanted[*listener]);
    for (served, listener) in by_size.into_iter().enumerate() {
        let share = left / (wanted.len() - served);
        let granted = wanted[listener].min(share);
        left -= granted;
        ceilings[listener] = granted.max(1);
    }
    ceilings
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lsn_13_the_configured_ceiling_holds_when_the_limit_leaves_room() {
        assert_eq!(
            ceilings(&[60_000, 256], Some(1_048_576), 256),
            [60_000, 256]
        );
        assert_eq!(ceilings(&[60_000, 256], Some(60_512), 256), [60_000, 256]);
        assert_eq!(ceilings(&[60_000, 256], None, 256), [60_000, 256]);
    }

    #[test]
    fn lsn_13_a_lower_limit_lowers_the_large_listener() {
        assert_eq!(ceilings(&[60_000, 256], Some(60_511), 256), [59_999, 256]);
        assert_eq!(ceilings(&[60_000, 256], Some(20_000), 256), [19_488, 256]);
        assert_eq!(ceilings(&[256, 60_000], Some(20_000), 256), [256, 19_488]);
        assert_eq!(ceilings(&[60_000, 256], Some(1_024), 256), [512, 256]);
        assert_eq!(
            ceilings(&[60_000, 40_000, 100], Some(1_356), 256),
            [500, 500, 100]
        );
    }

    #[test]
    fn lsn_13_no_listener_is_shut_by_a_small_limit() {
        assert_eq!(ceilings(&[60_000, 256], Some(256), 256), [1, 1]);
        assert_eq!(ceilings(&[60_000], Some(10), 256), [1]);
        assert_eq!(ceilings(&[], Some(10), 256), [0; 0]);
    }

    proptest! {
        #[test]
        fn lsn_13_never_more_than_wanted_nor_than_the_limit_leaves(
            wanted in proptest::collection::vec(1usize..100_000, 1..6),
            limit in 300u64..200_000,
        ) {
            let granted = ceilings(&wanted, Some(limit), 256);
            prop_assert_eq!(granted.len(), wanted.len());
            prop_assert!(granted.iter().zip(&wanted).all(|(got, want)| (1..=*want).contains(got)));
            let room = (limit - 256) as usize;
            let total: usize = granted.iter().sum();
            prop_assert!(total <= room);
            prop_assert!(total == room || granted == wanted);
        }
    }

    const CHILD: &str = "YUZU_TEST_DESCRIPTOR_CHILD";

    /// Runs this test once more in a process of its own, started with a low soft limit, since the
    /// limit belongs to the process.
    #[test]
    fn lsn_13_the_soft_limit_is_raised_to_the_hard_one() {
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(current_limit(), Some(100));
            assert_eq!(raise_limit().unwrap(), Some(200));
            assert_eq!(current_limit(), Some(200));
            assert_eq!(raise_limit().unwrap(), Some(200));
            return;
        }
        let name = "observe::descriptors::tests::lsn_13_the_soft_limit_is_raised_to_the_hard_one";
        let output = Command::new("sh")
            .args([
                "-c",
                r#"ulimit -S -n 100 && ulimit -H -n 200 && exec "$0" --exact "$1""#,
            ])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(CHILD, "1")
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{stdout}"
        );
    }
}
