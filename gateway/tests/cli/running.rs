//! The binary as a running process: its log, signals, and what the service manager hears.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{File, SOUND, code, command, err, gateway};

const RUNNING: &str = "[observe]\nmetrics_address = \"127.0.0.1:0\"\nhealth_address = \"127.0.0.1:0\"\n\
                       [shutdown]\nflush_budget_ms = 0\n";

#[test]
fn run_serves_until_a_signal_and_ends_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let file = File::new(
            &format!("run-{}", signal.as_raw()),
            &format!("{SOUND}{RUNNING}"),
        );
        let mut running = Running::start(file.path());
        running.wait_for("gateway started");
        kill_process(running.pid(), signal).expect("signalled");
        assert_eq!(running.ended(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_a_stop_that_waits_at_once_with_1() {
    // It waits for what has begun, as long as there is time.
    let patient = RUNNING.replace("flush_budget_ms = 0", "flush_budget_ms = 60000");
    let file = File::new("second-signal", &format!("{SOUND}{patient}"));
    let mut running = Running::start(file.path());
    let line = running.wait_for("listening");
    let address = line.split_whitespace().find_map(|word| {
        let address = word.strip_prefix("address=")?;
        address.parse::<SocketAddr>().ok()
    });
    let _unfinished = unfinished_request(address.expect("an address"));
    running.wait_for("gateway started");
    kill_process(running.pid(), Signal::TERM).expect("signalled");
    running.wait_for("planned stop: refusing new work");
    kill_process(running.pid(), Signal::TERM).expect("signalled");
    running.wait_for("second signal: stopping at once");
    assert_eq!(running.ended(), Some(1));
}

/// A connection with a request that never ends, which a planned stop waits for; returns when the
/// gateway has it.
fn unfinished_request(gateway: SocketAddr) -> TcpStream {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend(payload);
        frame
    };
    // Literal fields without indexing: the method, the scheme, the path and the authority.
    let mut headers = vec![0x83, 0x86];
    for (index, value) in [(4, "/yuzu.agent.v1.AgentService/Register"), (1, "gateway")] {
        headers.extend([index, value.len() as u8]);
        headers.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &headers));
    let mut socket = TcpStream::connect(gateway).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // The answer to the first PING comes after the request was read, that to the second after it
    // has begun.
    for name in [[1; 8], [2; 8]] {
        bytes.extend(frame(6, 0, 0, &name));
        socket.write_all(&bytes).expect("sent");
        bytes.clear();
        let answer = frame(6, 1, 0, &name);
        let mut seen: Vec<u8> = Vec::new();
        while !seen.windows(answer.len()).any(|part| part == answer) {
            let mut piece = [0; 1024];
            let read = socket.read(&mut piece).expect("read");
            assert!(read > 0, "closed: {seen:?}");
            seen.extend(&piece[..read]);
        }
    }
    socket
}

#[test]
fn run_logs_the_warnings_of_the_configuration() {
    let file = File::new(
        "run-warns",
        &format!("{SOUND}rpc_timeout_ms = 1\n{RUNNING}"),
    );
    let mut running = Running::start(file.path());
    let line = running.wait_for("upstream.rpc_timeout_ms is 1, not an integer");
    assert!(line.contains("WARN"), "{line}");
}

#[test]
fn reload_1_and_2_sighup_reads_the_file_again_and_the_process_goes_on() {
    let text = |level: &str, more: &str| {
        let running = RUNNING.replacen(
            "[observe]",
            &format!("[observe]\nlog_level = \"{level}\""),
            1,
        );
        format!("{SOUND}{more}{running}")
    };
    let file = File::new("reload", &text("warn", ""));
    let manager = Manager::new("reload-socket");
    let variables = [
        ("YUZU_GW_COMMAND_TIMEOUT_S", "7"),
        ("NOTIFY_SOCKET", manager.path()),
    ];
    let mut running = Running::start_with(file.path(), &variables);
    assert_eq!(manager.told(), "READY=1");
    let mut reload = |text: &str, line: &str| {
        std::fs::write(file.path(), text).expect("written");
        kill_process(running.pid(), Signal::HUP).expect("signalled");
        running.wait_for(line)
    };
    // The level itself: the line that tells of it is below the old one.
    let changed = "Configuration reloaded, generation 1; changed: upstream.rpc_timeout_ms, \
                   observe.log_level";
    reload(&text("info", "rpc_timeout_ms = 700\n"), changed);
    let refused = reload(
        &text("info", "rpc_timeout_ms = 800\nretries = 1\n"),
        "Reload refused, nothing has changed: unknown_keys: ",
    );
    let named = format!("{}:7:1: upstream.retries is not a key; ", file.path());
    assert!(
        refused.contains(&named) && refused.contains("ERROR"),
        "{refused}"
    );
    // The variable still wins over the file, and the timeout is that of the reload before.
    let elsewhere = text(
        "info",
        "rpc_timeout_ms = 700\n[command]\ndefault_timeout_s = 9\n",
    );
    let elsewhere = elsewhere.replacen("127.0.0.1:0", "127.0.0.1:4711", 1);
    reload(
        &elsewhere,
        "Configuration reloaded, generation 2; changed: nothing",
    );
    running.wait_for("these keep their values until a restart: listener[0].address");
    kill_process(running.pid(), Signal::TERM).expect("signalled");
    assert_eq!(running.ended(), Some(0));
}

#[test]
fn boot_19_run_ends_with_3_when_a_port_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let text = format!("{SOUND}{RUNNING}");
    for (line, key) in [
        ("\naddress = ", "listener[0].address"),
        ("metrics_address = ", "observe.metrics_address"),
        ("health_address = ", "observe.health_address"),
    ] {
        let free = format!("{line}\"127.0.0.1:0\"");
        let text = text.replacen(&free, &format!("{line}\"{address}\""), 1);
        let file = File::new(&format!("taken-{key}"), &text);
        let output = gateway(&["run", "--config", file.path()], &[]);
        assert_eq!(code(&output), Some(3), "{key}");
        let lines = err(&output);
        let critical: Vec<_> = lines
            .lines()
            .filter_map(|line| line.split_once("CRITICAL Refusing to start: "))
            .collect();
        let [(_, refusal)] = critical[..] else {
            panic!("one line: {lines}");
        };
        let told = format!("{key} = \"{address}\" can not be listened on: ");
        assert!(refusal.starts_with(&told), "{refusal}");
        assert!(refusal.contains("another process has it"), "{refusal}");
    }
}

#[test]
fn run_tells_the_service_manager_that_it_is_ready_alive_and_stopping() {
    let file = File::new("systemd", &format!("{SOUND}{RUNNING}"));
    let manager = Manager::new("notify-socket");
    let variables = [
        ("NOTIFY_SOCKET", manager.path()),
        ("WATCHDOG_USEC", "30000"),
    ];
    let mut running = Running::start_with(file.path(), &variables);
    assert_eq!(manager.told(), "READY=1");
    for _ in 0..5 {
        assert_eq!(manager.told(), "WATCHDOG=1");
    }
    kill_process(running.pid(), Signal::TERM).expect("signalled");
    while manager.told() != "STOPPING=1" {}
    assert_eq!(running.ended(), Some(0));
}

/// The service manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    file: File,
}

impl Manager {
    fn new(name: &str) -> Self {
        let file = File::new(name, "");
        std::fs::remove_file(file.path()).expect("removed");
        let socket = UnixDatagram::bind(file.path()).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self { socket, file }
    }

    fn path(&self) -> &str {
        self.file.path()
    }

    /// The next message.
    fn told(&self) -> String {
        let mut text = [0; 64];
        let read = loop {
            match self.socket.recv(&mut text) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.expect("a message"),
            }
        };
        String::from_utf8_lossy(&text[..read]).trim_end().to_owned()
    }
}

/// A gateway in the background; killed when the test ends.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

/// Nothing here takes a second; a machine under load may.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Running {
    fn start(path: &str) -> Self {
        Self::start_with(path, &[])
    }

    pub(crate) fn start_with(path: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = command(&["run", "--config", path]);
        let mut child = command
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let stderr = child.stderr.take().expect("piped");
        let (sender, lines) = mpsc::sync_channel(1_000);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The first line from now on that contains `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("the line comes");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The exit code; the log ends when the process does.
    fn ended(&mut self) -> Option<i32> {
        while self.lines.recv_timeout(PATIENCE).is_ok() {}
        self.child.wait().expect("waited").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
