use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const GIB: u64 = 1 << 30;
const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:          1 kB\n";
const V2_MOUNT: &str =
    "31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

/// Files below a directory of its own.
struct Root(PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Root {
    fn new(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("yuzu-memory-limit-{}-{number}", std::process::id());
        let root = Self(std::env::temp_dir().join(name));
        for (path, text) in files {
            let path = root.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn machine(&self) -> Machine {
        Machine::read(&self.0)
    }

    fn memory(&self) -> Option<(u64, LimitOrigin)> {
        let machine = self.machine();
        assert_eq!(machine.unreadable, []);
        machine.memory.map(|memory| (memory.bytes, memory.origin))
    }
}

#[test]
fn shed_5_without_a_group_it_is_the_hosts_memory() {
    let root = Root::new(&[("proc/meminfo", MEMINFO)]);
    assert_eq!(root.memory(), Some((16 * GIB, LimitOrigin::Host)));
}

#[test]
fn shed_5_nothing_to_read_is_no_limit() {
    assert_eq!(Root::new(&[]).memory(), None);
    assert_eq!(
        Root::new(&[("proc/meminfo", "MemTotal: x\n")]).memory(),
        None
    );
}

#[test]
fn shed_5_v2_takes_the_smallest_of_the_group_and_its_parents() {
    let root = Root::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/system.slice/gw.service\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/system.slice/gw.service/memory.max", "max\n"),
        ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
        // Not read: it throttles and kills nothing.
        (
            "sys/fs/cgroup/system.slice/gw.service/memory.high",
            "1024\n",
        ),
    ]);
    assert_eq!(root.memory(), Some((2 * GIB, LimitOrigin::CgroupV2)));
}

#[test]
fn shed_5_a_limit_above_the_hosts_memory_is_none() {
    let root = Root::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/memory.max", "34359738368\n"),
    ]);
    assert_eq!(root.memory(), Some((16 * GIB, LimitOrigin::Host)));
}

#[test]
fn shed_5_v1_is_read_from_the_memory_controller_and_2_to_the_62_is_none() {
    let mounts = "40 31 0:35 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                  41 31 0:36 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
    let groups = "4:memory:/docker/abc/gw\n3:cpu,cpuacct:/docker/abc\n";
    let with = |own: &str| {
        Root::new(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", groups),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/memory/gw/memory.limit_in_bytes", own),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "4611686018427387904\n",
            ),
        ])
    };
    assert_eq!(
        with("1073741824\n").memory(),
        Some((GIB, LimitOrigin::CgroupV1))
    );
    assert_eq!(
        with("9223372036854771712\n").memory(),
        Some((16 * GIB, LimitOrigin::Host))
    );
}

#[test]
fn shed_5_a_group_of_another_namespace_is_looked_for_at_the_mount_point() {
    let mounts = "31 24 0:27 /../../outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let root = Root::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/../../elsewhere\n"),
        ("proc/self/mountinfo", mounts),
        ("sys/fs/cgroup/memory.max", "1073741824"),
    ]);
    assert_eq!(root.memory(), Some((GIB, LimitOrigin::CgroupV2)));
}

#[test]
fn shed_5_a_file_that_is_no_limit_is_told_and_skipped() {
    let root = Root::new(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/a\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/a/memory.max", "much\n"),
        ("sys/fs/cgroup/memory.max/oops", ""),
    ]);
    let machine = root.machine();
    assert_eq!(
        machine.memory,
        Some(MemoryLimit {
            bytes: 16 * GIB,
            origin: LimitOrigin::Host
        })
    );
    let unreadable: Vec<_> = machine.unreadable.iter().map(|(path, _)| path).collect();
    assert_eq!(
        unreadable,
        [
            &root.0.join("sys/fs/cgroup/a/memory.max"),
            &root.0.join("sys/fs/cgroup/memory.max"),
        ]
    );
    assert_eq!(machine.unreadable[0].1, "holds no number of bytes");
}
