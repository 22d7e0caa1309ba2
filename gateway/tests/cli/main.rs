//! The binary as an operator meets it: exit codes, signals, and what is printed where.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

mod cluster;
mod running;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The binary in an empty environment.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yuzu-gateway"));
    command.args(arguments).env_clear().current_dir(REPOSITORY);
    command
}

fn gateway(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = command(arguments);
    command
        .envs(variables.iter().copied())
        .output()
        .expect("the binary runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// A file that goes when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("yuzu-cli-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The production file, with certificates where it says that they are.
struct Production {
    file: File,
    certificates: PathBuf,
}

impl Production {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let certificates =
            std::env::temp_dir().join(format!("yuzu-cli-certs-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&certificates).unwrap();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        for name in [
            "default-gateway.pem",
            "default-ca.pem",
            "default-server.pem",
        ] {
            std::fs::write(certificates.join(name), own.cert.pem()).unwrap();
        }
        let key = own.signing_key.serialize_pem();
        std::fs::write(certificates.join("default-gateway.key"), key).unwrap();
        let text =
            std::fs::read_to_string(format!("{REPOSITORY}/config/gateway.prod.toml")).unwrap();
        let text = text.replace("/etc/yuzu/certs", certificates.to_str().unwrap());
        let file = File::new(&format!("production-{number}"), &text);
        Self { file, certificates }
    }
}

impl Drop for Production {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.certificates);
    }
}

#[test]
fn check_tells_which_certificate_files_are_not_there() {
    let output = gateway(&["check", "--config", "config/gateway.prod.toml"], &[]);
    assert_eq!(code(&output), Some(2));
    let text = out(&output);
    for told in [
        "refused: config/gateway.prod.toml:",
        "listener[0].tls.cert_file names a file that does not exist (yet)",
        "listener[1].tls.key_file names a file that does not exist (yet)",
        "upstream.tls.ca_file names a file that does not exist (yet)",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(!text.contains("default-gateway.key"), "{text}");
}

const SOUND: &str = "[[listener]]\nservices = [\"agent\"]\naddress = \"127.0.0.1:0\"\n\
                     [upstream]\nendpoints = [\"http://127.0.0.1:1\"]\n";

/// Free ports, and no time for notices that no server takes.

#[test]
fn check_ends_with_0_when_there_is_nothing_to_say() {
    let production = Production::new();
    for file in ["config/gateway.toml", production.file.path()] {
        let output = gateway(&["check", "--config", file], &[]);
        assert_eq!(
            (code(&output), out(&output).as_str()),
            (Some(0), "no problems\n"),
            "{file}"
        );
    }
    assert_eq!(code(&gateway(&["check"], &[])), Some(0), "the defaults");
}

#[test]
fn check_ends_with_1_when_it_would_start_with_warnings() {
    let file = File::new(
        "warn",
        &format!("{SOUND}rpc_timeout_ms = 1\n[memory.reclaim]\nenabled = false\n"),
    );
    let output = gateway(
        &["check", "--config", file.path()],
        &[("YUZU_GW_UPSTREAM_ADDR", "x")],
    );
    let path = file.path();
    assert_eq!(code(&output), Some(1));
    assert_eq!(
        out(&output),
        format!(
            "warning: {path}:6:18: upstream.rpc_timeout_ms is 1, not an integer from 100 to 60000; \
             the default 5000 is used instead\n\
             warning: {path}:8:11: memory.reclaim has no effect in this version (enabled)\n\
             warning: YUZU_GW_UPSTREAM_ADDR is set but has no effect\n\
             3 warnings: it would start\n"
        )
    );
}

#[test]
fn check_ends_with_2_and_tells_all_problems_when_it_would_not_start() {
    let file = File::new(
        "refused",
        &format!("{SOUND}rpc_timeout = 1\nregister_queue = 0\n"),
    );
    let output = gateway(&["check", "--config", file.path()], &[]);
    let path = file.path();
    assert_eq!(code(&output), Some(2));
    assert_eq!(
        out(&output),
        format!(
            "refused: {path}:6:1: upstream.rpc_timeout is not a key; did you mean \
             upstream.rpc_timeout_ms?\n\
             warning: {path}:7:18: upstream.register_queue is 0, not an integer from 1 to 1000000; \
             the default 10000 is used instead\n\
             2 problems: it would refuse to start\n"
        )
    );
    assert_eq!(
        code(&gateway(&["check", "--config", "no/such/file"], &[])),
        Some(2)
    );
}

#[test]
fn config_prints_a_file_that_prints_the_same_values() {
    let variables = [("YUZU_GW_AGENT_PORT", "7"), ("YUZU_GW_CLUSTER_ID", "west")];
    let production = Production::new();
    let first = gateway(&["config", "--config", production.file.path()], &variables);
    assert_eq!(code(&first), Some(0));
    assert!(out(&first).contains("cluster_id = \"west\""));
    let file = File::new("printed", &out(&first));
    let second = gateway(&["config", "--config", file.path()], &[]);
    let values = |output: &Output| -> Vec<String> {
        let text = out(output);
        text.lines()
            .map(|line| line.split(" # ").next().unwrap_or(line).to_owned())
            .collect()
    };
    assert_eq!(values(&second), values(&first));
    assert_eq!(err(&second), "");
}

#[test]
fn config_tells_warnings_beside_the_output() {
    let output = gateway(&["config"], &[("YUZU_GW_UPSTREAM_ADDR", "x")]);
    assert_eq!(code(&output), Some(0));
    assert_eq!(
        err(&output),
        "warning: YUZU_GW_UPSTREAM_ADDR is set but has no effect\n"
    );
}

#[test]
fn boot_19_a_refused_configuration_is_one_critical_line_per_refusal() {
    let file = File::new(
        "boot",
        "[upstream]\nendpoints = [\"http://127.0.0.1:1\"]\nx_y_z = 1\n",
    );
    let expected = format!(
        "CRITICAL Refusing to start: unknown_keys: {0}:3:1: upstream.x_y_z is not a key; delete it\n\
         CRITICAL Refusing to start: no_listeners: {0}: listener serves no agents anywhere; add a \
         [[listener]] with services = [\"agent\"]\n",
        file.path()
    );
    for command in ["run", "config"] {
        let output = gateway(&[command, "--config", file.path()], &[]);
        assert_eq!(
            (code(&output), err(&output)),
            (Some(2), expected.clone()),
            "{command}"
        );
        assert_eq!(out(&output), "");
    }
}

#[test]
fn the_version_and_the_exit_codes_can_be_asked_for() {
    let version = gateway(&["--version"], &[]);
    assert_eq!(
        out(&version),
        format!("yuzu-gateway {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = out(&gateway(&["--help"], &[]));
    assert!(help.contains("1 warnings only: it would start"), "{help}");
    assert_eq!(code(&gateway(&["walk"], &[])), Some(2));
}

#[test]
fn output_that_can_not_be_written_is_a_failure() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("a full device");
    let output = command(&["config"])
        .stdout(full)
        .output()
        .expect("the binary runs");
    assert_eq!(code(&output), Some(2));
    assert!(
        err(&output).starts_with("the output could not be written: "),
        "{}",
        err(&output)
    );
}
