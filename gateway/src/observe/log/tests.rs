//! What reaches the writer.

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::limit::LineLimit;
use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(level: &str, format: LogFormat, work: impl FnOnce()) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let (dispatch, _level) = dispatch(parse_filter(level).unwrap(), format, false, move || {
        writer.clone()
    });
    tracing::dispatcher::with_default(&dispatch, work);
    lines.text()
}

#[test]
fn text_lines_hold_the_message_and_the_fields() {
    let text = written("info", LogFormat::Text, || {
        tracing::info!(cap = 8, "session cap reached");
        tracing::debug!("unseen");
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains(" INFO ") && text.ends_with("session cap reached cap=8\n"),
        "{text}"
    );
}

#[test]
fn another_level_holds_from_now_on() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let lines = Lines::default();
        let writer = lines.clone();
        let (dispatch, set_level) = dispatch(parse_filter("warn").unwrap(), format, false, {
            move || writer.clone()
        });
        tracing::dispatcher::with_default(&dispatch, || {
            // One place in the code, so that what is remembered of it would show.
            for (level, number) in [("warn", 1), ("info", 2), ("error", 3), ("info", 4)] {
                set_level(parse_filter(level).unwrap());
                tracing::info!("line {number}");
            }
        });
        let text = lines.text();
        let seen = |number| text.contains(&format!("line {number}"));
        assert_eq!([1, 2, 3, 4].map(seen), [false, true, false, true], "{text}");
    }
}

#[test]
fn json_lines_are_one_object_each_with_the_fields_at_the_top() {
    let text = written("warn", LogFormat::Json, || {
        tracing::warn!(cap = 8, "first\nline");
        tracing::error!("second");
        tracing::info!("unseen");
    });
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["message"], "first\nline");
    assert_eq!(lines[0]["cap"], 8);
    assert_eq!(lines[0]["level"], "WARN");
    assert_eq!(lines[1]["message"], "second");
}

#[test]
fn a_filter_can_set_the_level_of_one_module() {
    let text = written("warn,yuzu_gateway=debug", LogFormat::Text, || {
        tracing::debug!("ours");
        tracing::info!(target: "h2", "theirs");
    });
    assert!(text.contains("ours") && !text.contains("theirs"), "{text}");
}

#[test]
fn a_misspelt_level_is_refused_and_named() {
    for (level, named) in [
        ("inof", "inof"),
        ("", ""),
        ("info,", ""),
        ("info, verbos", "verbos"),
    ] {
        let error = parse_filter(level).unwrap_err();
        assert!(
            matches!(&error, LogError::Level { part } if part == named),
            "{level}: {error}"
        );
    }
    let error = parse_filter("yuzu_gateway=loud").unwrap_err();
    assert!(matches!(error, LogError::Filter { .. }));
    assert!(error.to_string().contains("yuzu_gateway=loud"), "{error}");
    for level in [
        "off",
        "error",
        "Warn",
        "INFO",
        "debug",
        "trace",
        "info,h2=debug",
    ] {
        assert!(parse_filter(level).is_ok(), "{level}");
    }
}

#[test]
fn warnings_of_the_http2_library_that_a_peer_can_provoke_are_written_on_request_only() {
    let provoke = || {
        tracing::warn!(target: "h2::proto::ping_pong", "recv PING ack that we never sent");
        tracing::error!(target: "h2::proto", "a fault");
    };
    let text = written("info", LogFormat::Text, provoke);
    assert!(!text.contains("PING") && text.contains("a fault"), "{text}");
    let text = written("info,h2=warn", LogFormat::Text, provoke);
    assert!(text.contains("PING"), "{text}");
}

#[test]
fn log_1_the_macro_writes_the_count_at_the_end_of_the_line() {
    let unlimited = LineLimit::new(Duration::ZERO);
    let limit = LineLimit::new(Duration::from_secs(3600));
    let text = written("info", LogFormat::Text, || {
        for size in [300, 301, 302] {
            limited!(warn, limit, "Register refused (size {size} bytes)");
            limited!(info, unlimited, { size }, "with {}", "a field");
        }
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(
        lines[0].ends_with("Register refused (size 300 bytes)"),
        "{text}"
    );
    assert!(lines[1].ends_with("with a field size=300"), "{text}");
    assert_eq!(
        lines.iter().filter(|line| line.contains("WARN")).count(),
        1,
        "{text}"
    );
}

const CHILD: &str = "YUZU_TEST_PANICKING_CHILD";
const CANARY: &str = "canary-5f3a";

/// Runs this test once more in a process of its own, since the hook and the subscriber belong to
/// the process: there every thread that panics carries the canary.
#[test]
fn log_5_a_panic_writes_its_place_and_never_its_payload() {
    if std::env::var_os(CHILD).is_some() {
        init("info", LogFormat::Text).unwrap();
        init("debug", LogFormat::Json).unwrap();
        for literal in [true, false] {
            let thread = std::thread::spawn(move || {
                if literal {
                    panic!("canary-5f3a");
                }
                let parsed: Result<u32, _> = CANARY.parse().map_err(|_| CANARY);
                parsed.unwrap();
            });
            assert!(thread.join().is_err());
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("observe::log::tests::log_5_a_panic_writes_its_place_and_never_its_payload")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}\n{stderr}"
    );
    assert!(
        !stdout.contains(CANARY) && !stderr.contains(CANARY),
        "{stdout}\n{stderr}"
    );
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    for line in lines {
        assert!(line.contains("ERROR"), "{line}");
        assert!(line.contains("panic, text withheld, at "), "{line}");
        assert!(line.contains("log/tests.rs:"), "{line}");
    }
}
