//! Tests of the whole room: text and variables in, configuration or problems out.

mod boot;
mod cluster;
mod every_key;
mod files;
mod in_force;
mod matrix;
mod peers;
mod reload;
mod samples;
mod shedding;
mod texts;
mod variables;
mod wild;

use std::ffi::OsString;

use std::sync::LazyLock;

use super::{Config, Loaded, Machine, Place, Problem, Refused, Source, SourceFile, load};
use crate::pki::testing::{Authority, Directory, Wish};

/// Ten lines that start: both listeners and an endpoint.
const SOUND: &str = r#"
[[listener]]
name = "agent"
services = ["agent"]

[[listener]]
name = "management"
services = ["management"]

[upstream]
endpoints = ["http://127.0.0.1:50055"]
"#;

/// The sound file with more tables.
fn with(extra: &str) -> String {
    format!("{SOUND}\n{extra}")
}

fn source(text: &str, variables: &[(&str, &str)]) -> Source {
    let os = |text: &str| OsString::from(text);
    Source {
        file: Some(SourceFile {
            path: "g.toml".into(),
            text: text.into(),
        }),
        environment: variables
            .iter()
            .map(|(name, value)| (os(name), os(value)))
            .collect(),
        host_name: Some("host-1".into()),
        machine: Machine::default(),
    }
}

/// The production file, with certificates where it says that they are.
fn production() -> &'static str {
    static PRODUCTION: LazyLock<(Install, String)> = LazyLock::new(|| {
        let install = Install::new();
        let text = include_str!("../../../../config/gateway.prod.toml");
        let text = text.replace(
            "/etc/yuzu/certs",
            &install.directory.path("").display().to_string(),
        );
        (install, text)
    });
    &PRODUCTION.1
}

/// The certificate files of an install, with their usual names.
struct Install {
    authority: Authority,
    directory: Directory,
}

impl Install {
    fn new() -> Self {
        let (authority, directory) = (Authority::new("ca"), Directory::new());
        let gateway = authority.issue(Wish::default());
        directory.write("default-gateway.pem", gateway.certificate);
        directory.write("default-gateway.key", gateway.key);
        directory.write("default-ca.pem", authority.pem());
        directory.write(
            "default-server.pem",
            authority.issue(Wish::default()).certificate,
        );
        Self {
            authority,
            directory,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path(name).display().to_string()
    }

    /// The keys of a `[listener.tls]` with these files.
    fn tls(&self) -> String {
        format!(
            "cert_file = \"{}\"\nkey_file = \"{}\"\nca_file = \"{}\"\n",
            self.path("default-gateway.pem"),
            self.path("default-gateway.key"),
            self.path("default-ca.pem")
        )
    }
}

fn loaded(text: &str) -> Loaded {
    loaded_with(text, &[])
}

fn loaded_with(text: &str, variables: &[(&str, &str)]) -> Loaded {
    load(&source(text, variables)).unwrap_or_else(|refused| panic!("{:#?}", refused.problems))
}

fn refused(text: &str) -> Refused {
    load(&source(text, &[])).expect_err("refused")
}

/// Every problem as its line, and whether the gateway would start.
fn lines(text: &str) -> (Vec<String>, bool) {
    lines_with(text, &[])
}

fn lines_with(text: &str, variables: &[(&str, &str)]) -> (Vec<String>, bool) {
    let (problems, starts) = match load(&source(text, variables)) {
        Ok(loaded) => (loaded.warnings, true),
        Err(refused) => (refused.problems, false),
    };
    (problems.iter().map(Problem::to_string).collect(), starts)
}

/// The defect terms of a refusal, in order.
fn terms(text: &str) -> Vec<&'static str> {
    let term = |problem: &Problem| match problem.effect {
        super::Effect::Refuses(why) => Some(why.term()),
        super::Effect::Warns | super::Effect::SaidAtStart => None,
    };
    refused(text).problems.iter().filter_map(term).collect()
}

#[test]
fn without_a_file_the_defaults_are_in_force() {
    let source = Source {
        host_name: Some("host-1".into()),
        machine: Machine::default(),
        ..Source::default()
    };
    let loaded = load(&source).expect("starts");
    let mut expected = Config::default();
    expected.node.name = "yuzu_gw@host-1".into();
    assert_eq!(loaded.config, expected);
    assert_eq!(loaded.warnings, []);
}

#[test]
fn a_short_file_has_the_defaults_too() {
    let mut expected = Config::default();
    expected.node.name = "yuzu_gw@host-1".into();
    assert_eq!(loaded(SOUND).config, expected);
}

#[test]
fn line_ends_and_marks_of_other_editors_are_read() {
    let crlf = SOUND.replace('\n', "\r\n");
    assert_eq!(loaded(&crlf).config, loaded(SOUND).config);
    assert_eq!(
        loaded(&format!("\u{feff}{SOUND}")).config,
        loaded(SOUND).config
    );
}

#[test]
fn a_file_that_is_not_there_or_not_text_is_told() {
    let directory = std::env::temp_dir().join(format!("yuzu-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("g.toml");
    let problem = |path: &std::path::Path| {
        Source::read(Some(path))
            .expect_err("refused")
            .problems
            .remove(0)
    };

    let missing = problem(&path);
    assert!(missing.is_refusal());
    assert!(
        missing.to_string().contains("g.toml can't be read: "),
        "{missing}"
    );

    std::fs::write(&path, b"[node]\ncluster_id = \"a\xff\"\n").expect("written");
    let not_utf8 = problem(&path);
    assert!(
        matches!(
            not_utf8.place,
            Place::At {
                line: 2,
                column: 16,
                ..
            }
        ),
        "{not_utf8:?}"
    );

    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).expect("written");
    assert!(
        problem(&path)
            .to_string()
            .contains("has more than 1048576 bytes")
    );

    std::fs::write(&path, SOUND).expect("written");
    let source = Source::read(Some(&path)).expect("read");
    assert_eq!(source.file.expect("a file").text, SOUND);
    std::fs::remove_dir_all(&directory).expect("removed");
}
