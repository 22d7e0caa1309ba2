//! BOOT-17, SHED: the keys of memory shedding.

use super::super::{LimitOrigin, MemoryLimit};
use super::{SOUND, load, source, terms, with};

#[test]
fn boot_17_refuses_shedding_keys_it_can_not_read() {
    for bad in [
        "enabled = 1",
        "interval_ms = 9",
        "high_water_fraction = 1.0",
        "low_water_bytes = 0",
    ] {
        assert_eq!(
            terms(&with(&format!("[memory.shedding]\n{bad}\n"))),
            ["memory_shedding"],
            "{bad}"
        );
    }
}

/// With the memory of a machine of 1,000 bytes.
fn shedding(keys: &str) -> (Vec<String>, bool) {
    let mut source = source(&with(&format!("[memory.shedding]\n{keys}")), &[]);
    source.machine.memory = Some(MemoryLimit {
        bytes: 1_000,
        origin: LimitOrigin::CgroupV2,
    });
    match load(&source) {
        Ok(loaded) => (
            loaded.warnings.iter().map(ToString::to_string).collect(),
            true,
        ),
        Err(refused) => (
            refused
                .problems
                .iter()
                .map(|problem| problem.critical_line().unwrap())
                .collect(),
            false,
        ),
    }
}

#[test]
fn boot_17_shed_7_marks_that_can_not_work_refuse_the_start() {
    for (keys, line) in [
        (
            "high_water_bytes = 1000\n",
            "Refusing to start: memory_shedding: g.toml:14:20: memory.shedding.high_water_bytes \
             gives a mark of 1000 bytes (high_water_bytes), not below the memory limit of 1000 \
             bytes (cgroup_v2); correct the marks",
        ),
        (
            "low_water_fraction = 0.75\n",
            "Refusing to start: memory_shedding: g.toml:14:22: memory.shedding.low_water_fraction \
             gives a low mark of 750 bytes (low_water_fraction 0.75 of 1000 bytes), not below the \
             high mark of 750 bytes (high_water_fraction 0.75 of 1000 bytes); correct the marks",
        ),
        (
            "low_water_bytes = 0\n",
            "Refusing to start: memory_shedding: g.toml:14:19: memory.shedding.low_water_bytes is \
             0, not an integer from 1 to 1125899906842624; correct it",
        ),
        (
            "high_water_fraction = 1.0\n",
            "Refusing to start: memory_shedding: g.toml:14:23: memory.shedding.high_water_fraction \
             is 1.0, not a fraction between 0 and 1; correct it",
        ),
        (
            "interval_ms = \"often\"\n",
            "Refusing to start: memory_shedding: g.toml:14:15: memory.shedding.interval_ms is a \
             string of 5 bytes, not an integer from 10 to 60000; correct it",
        ),
    ] {
        assert_eq!(shedding(keys), (vec![line.to_owned()], false));
    }
    for interval in [
        "interval_ms = 9\n",
        "interval_ms = 60001\n",
        "enabled = 1\n",
    ] {
        assert!(!shedding(interval).1, "{interval}");
    }
    for interval in [
        "interval_ms = 10\n",
        "interval_ms = 60000\n",
        "enabled = false\n",
    ] {
        assert_eq!(shedding(interval), (vec![], true), "{interval}");
    }
    let (lines, starts) = shedding("high_water = 1\n");
    assert!(!starts);
    assert!(
        lines[0].contains("memory.shedding.high_water is not a key"),
        "{lines:?}"
    );
}

#[test]
fn shed_4_a_fraction_beside_bytes_is_told_to_have_no_effect() {
    assert_eq!(
        shedding("high_water_fraction = 0.9\nhigh_water_bytes = 800\n"),
        (
            vec![
                "g.toml:14:23: memory.shedding.high_water_fraction has no effect beside \
                 high_water_bytes; delete one of them"
                    .to_owned()
            ],
            true
        )
    );
}

#[test]
fn shed_5_a_file_of_the_machine_that_was_skipped_is_told() {
    let mut source = source(SOUND, &[]);
    let file = std::path::PathBuf::from("/sys/fs/cgroup/memory.max");
    source.machine.unreadable = vec![(file, "holds no number of bytes".into())];
    let loaded = load(&source).unwrap();
    let told: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "g.toml: memory.shedding skips a limit: /sys/fs/cgroup/memory.max holds no number of \
             bytes; set high_water_bytes below the limit"
        ]
    );
}
