use super::super::memory_limit::LimitOrigin;
use super::*;

const GIB: u64 = 1 << 30;

fn shedding() -> Shedding {
    Shedding {
        enabled: true,
        interval: Duration::from_secs(1),
        high_fraction: None,
        low_fraction: None,
        high_bytes: None,
        low_bytes: None,
    }
}

fn limit(bytes: u64) -> Option<MemoryLimit> {
    let origin = LimitOrigin::CgroupV2;
    Some(MemoryLimit { bytes, origin })
}

fn marks(shedding: &Shedding, limit: Option<MemoryLimit>) -> (u64, u64) {
    match shedding.judge(limit) {
        Ok(Plan::Active(Marks { high, low })) => (high, low),
        other => panic!("{other:?}"),
    }
}

fn fraction(value: f64) -> Option<Fraction> {
    Some(Fraction::new(value).unwrap())
}

#[test]
fn a_fraction_is_above_0_and_below_1() {
    for outside in [0.0, 1.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(Fraction::new(outside), None, "{outside}");
    }
    assert_eq!(Fraction::new(0.5).unwrap().get(), 0.5);
}

#[test]
fn shed_4_the_marks_are_three_quarters_and_65_hundredths_of_the_limit() {
    assert_eq!(marks(&shedding(), limit(1_000)), (750, 650));
    let set = Shedding {
        high_fraction: fraction(0.9),
        low_fraction: fraction(0.5),
        ..shedding()
    };
    assert_eq!(marks(&set, limit(1_000)), (900, 500));
}

#[test]
fn shed_4_one_mark_in_bytes_gives_the_other() {
    let high = Shedding {
        high_bytes: Some(7_500),
        ..shedding()
    };
    assert_eq!(marks(&high, limit(16 * GIB)), (7_500, 6_500));
    assert_eq!(marks(&high, None), (7_500, 6_500), "no limit is needed");
    let low = Shedding {
        low_bytes: Some(6_500),
        ..shedding()
    };
    assert_eq!(marks(&low, limit(16 * GIB)), (7_500, 6_500));
    assert_eq!(marks(&low, None), (7_500, 6_500));
}

#[test]
fn shed_4_a_derived_high_mark_at_the_limit_is_halfway_to_it() {
    let low = Shedding {
        low_bytes: Some(6_500),
        ..shedding()
    };
    assert_eq!(marks(&low, limit(7_501)), (7_500, 6_500));
    assert_eq!(marks(&low, limit(7_500)), (7_000, 6_500));
    assert_eq!(marks(&low, limit(6_600)), (6_550, 6_500));
}

#[test]
fn shed_4_an_explicit_fraction_is_kept() {
    let set = Shedding {
        high_bytes: Some(900),
        low_fraction: fraction(0.2),
        ..shedding()
    };
    assert_eq!(marks(&set, limit(1_000)), (900, 200));
    let set = Shedding {
        low_bytes: Some(100),
        high_fraction: fraction(0.3),
        ..shedding()
    };
    assert_eq!(marks(&set, limit(1_000)), (300, 100));
}

#[test]
fn shed_7_marks_that_can_not_work() {
    let cases: &[(Shedding, u64, &str, &str)] = &[
        (
            Shedding {
                high_bytes: Some(500),
                low_bytes: Some(500),
                ..shedding()
            },
            1_000,
            "memory.shedding.low_water_bytes",
            "gives a low mark of 500 bytes (low_water_bytes), not below the high mark of 500 bytes \
             (high_water_bytes)",
        ),
        (
            Shedding {
                high_bytes: Some(500),
                low_fraction: fraction(0.65),
                ..shedding()
            },
            1_000,
            "memory.shedding.low_water_fraction",
            "gives a low mark of 650 bytes (low_water_fraction 0.65 of 1000 bytes), not below the \
             high mark of 500 bytes (high_water_bytes)",
        ),
        (
            Shedding {
                high_bytes: Some(1_000),
                ..shedding()
            },
            1_000,
            "memory.shedding.high_water_bytes",
            "gives a mark of 1000 bytes (high_water_bytes), not below the memory limit of 1000 \
             bytes (cgroup_v2)",
        ),
        (
            Shedding {
                low_bytes: Some(1_000),
                ..shedding()
            },
            1_000,
            "memory.shedding.low_water_bytes",
            "gives a mark of 1153 bytes (low_water_bytes), not below the memory limit of 1000 \
             bytes (cgroup_v2)",
        ),
        (
            Shedding {
                high_bytes: Some(1),
                ..shedding()
            },
            1_000,
            "memory.shedding.high_water_bytes",
            "gives a low mark of 0 bytes (high_water_bytes)",
        ),
    ];
    for (shedding, bytes, key, fault) in cases {
        let defect = shedding.judge(limit(*bytes)).unwrap_err();
        assert_eq!((defect.key, &*defect.fault), (*key, *fault));
    }
}

#[test]
fn shed_8_a_fraction_of_an_unknown_limit_is_inactive() {
    assert_eq!(shedding().plan(None), Plan::Inactive);
    let one = Shedding {
        high_bytes: Some(900),
        low_fraction: fraction(0.2),
        ..shedding()
    };
    assert_eq!(one.plan(None), Plan::Inactive);
}

#[test]
fn shed_8_disabled_is_not_inactive() {
    let off = Shedding {
        enabled: false,
        high_bytes: Some(1),
        ..shedding()
    };
    assert_eq!(off.plan(None), Plan::Disabled);
    assert_eq!(off.plan(limit(10)), Plan::Disabled);
}
