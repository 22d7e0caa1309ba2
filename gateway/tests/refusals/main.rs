//! BOOT: every refusal, as an operator meets it: checked, and started.

mod matrix;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use matrix::{Ready, Row};

/// Goes when the test ends.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("yuzu-refusals-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        matrix::certificates(&path);
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn gateway(command: &str, row: &Row, path: &Path) -> Output {
    let variables = row.variables.iter();
    Command::new(env!("CARGO_BIN_EXE_yuzu-gateway"))
        .args([command.as_ref(), "--config".as_ref(), path.as_os_str()])
        .env_clear()
        .envs(variables.map(|(name, value)| (name, OsString::from_vec(value.clone()))))
        .output()
        .expect("the binary runs")
}

/// Does something with each row, and tells all that went wrong.
fn each_row(name: &str, look: impl Fn(&Row, &Ready) -> Result<(), String>) {
    let directory = Directory::new(name);
    let mut wrong = Vec::new();
    for row in matrix::rows() {
        let ready = row.prepare(&directory.0);
        if let Err(fault) = look(&row, &ready) {
            wrong.push(format!("{}:\n{fault}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn boot_19_check_tells_every_refusal_with_its_key_and_cure() {
    each_row("check", |row, ready| {
        let output = gateway("check", row, &ready.path);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let refused: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("refused: "))
            .collect();
        let (_term, wanted) = ready.line.split_once(": ").unwrap_or_default();
        match (output.status.code(), &refused[..]) {
            (Some(2), [line]) if *line == wanted => Ok(()),
            (code, _) => Err(format!("{code:?}\n{text}")),
        }
    });
}

#[test]
fn boot_19_run_ends_with_2_and_one_critical_line_for_every_refusal() {
    each_row("run", |row, ready| {
        let output = gateway("run", row, &ready.path);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let critical: Vec<_> = text
            .lines()
            .filter(|line| line.contains("CRITICAL"))
            .collect();
        let wanted = format!("CRITICAL Refusing to start: {}", ready.line);
        match (output.status.code(), &critical[..]) {
            (Some(2), [line]) if *line == wanted => Ok(()),
            (code, _) => Err(format!("{code:?}\n{text}")),
        }
    });
}
