//! Random input: no text and no variable makes the reader panic, and whatever it accepts can be
//! printed and read again.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::keys;
use super::super::{Loaded, load};
use super::{SOUND, production, source};

/// Something that looks like a TOML value.
fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (0..2_000_000_i64).prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        any::<bool>().prop_map(|b| b.to_string()),
        "[a-z0-9:/.\\[\\],=-]{0,24}".prop_map(|text| format!("\"{text}\"")),
        select(vec![
            "0xffffffffffffffffffffffffffffffffffffffff",
            "99999999999999999999999999999999999999999999",
            "1979-05-27T07:32:00Z",
            "nan",
            "\"127.0.0.1:0\"",
            "\"http://[::1]:1\"",
            "\"agent\"",
            "\"management\"",
            "'''a\nb'''",
            "{}",
            "[[]]",
        ])
        .prop_map(str::to_owned),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            inner.prop_map(|value| format!("{{ name = {value} }}")),
        ]
    })
}

/// Known keys with any value, in a file that may start.
fn known_keys() -> impl Strategy<Value = String> {
    let paths: Vec<&'static str> = keys::paths().collect();
    vec((select(paths), value()), 0..6).prop_map(|pairs| {
        let mut text = SOUND.to_owned();
        for (path, value) in pairs {
            match path.strip_prefix("listener.") {
                Some(key) => {
                    let line = "name = \"agent\"";
                    text = text.replacen(line, &format!("{line}\n{key} = {value}"), 1);
                }
                None => text = format!("{path} = {value}\n{text}"),
            }
        }
        text
    })
}

/// The production file after a few random cuts, copies and insertions.
fn mutated() -> impl Strategy<Value = String> {
    let edit = (
        any::<prop::sample::Index>(),
        0..40_usize,
        "[\\[\\]{}=\"'#,.\n a-z0-9_é]{0,6}",
    );
    vec(edit, 1..8).prop_map(|edits| {
        let mut text: Vec<char> = production().chars().collect();
        for (at, cut, insert) in edits {
            let at = at.index(text.len());
            let end = (at + cut).min(text.len());
            text.splice(at..end, insert.chars());
        }
        text.into_iter().collect()
    })
}

fn check(text: &str, variables: &[(&str, &str)]) -> Result<(), TestCaseError> {
    match load(&source(text, variables)) {
        Ok(loaded) => reads_back(&loaded),
        Err(refused) => {
            prop_assert!(refused.refusals().next().is_some());
            for problem in &refused.problems {
                prop_assert!(!problem.to_string().contains('\n'), "{problem}");
            }
            Ok(())
        }
    }
}

fn reads_back(loaded: &Loaded) -> Result<(), TestCaseError> {
    let toml = loaded.to_toml();
    match load(&source(&toml, &[])) {
        Ok(again) => {
            prop_assert_eq!(&again.config, &loaded.config);
            Ok(())
        }
        Err(refused) => Err(TestCaseError::fail(format!("{refused:?}\n{toml}"))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_read_without_a_panic(text in any::<String>()) {
        check(&text, &[])?;
    }

    #[test]
    fn a_mutated_file_is_read_without_a_panic(text in mutated()) {
        check(&text, &[])?;
    }

    #[test]
    fn any_value_of_any_key_is_read_without_a_panic(text in known_keys()) {
        check(&text, &[])?;
    }

    #[test]
    fn any_value_of_any_variable_is_read_without_a_panic(
        name in select(keys::variables().chain(["YUZU_GW_AGENT_PORT", "YUZU_GW_MGMT_PORT"]).collect::<Vec<_>>()),
        value in prop_oneof![".{0,12}", "[0-9]{1,7}"],
    ) {
        check(SOUND, &[(name, &value)])?;
    }
}
