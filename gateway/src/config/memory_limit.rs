//! How much memory the machine gives this process (SHED-5).
//!
//! Responsible for the smallest of the host's memory and of the limits of the process's control
//! groups, v1 and v2, parents included. Must never fail: what can't be read is told and left out.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// From here on a v1 limit means that there is none.
const V1_UNLIMITED: u64 = 1 << 62;

/// The memory that the process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// What sets it.
    pub origin: LimitOrigin,
}

/// What sets a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitOrigin {
    /// `memory.max` of a v2 control group.
    CgroupV2,
    /// `memory.limit_in_bytes` of a v1 control group.
    CgroupV1,
    /// The memory of the host.
    Host,
}

impl fmt::Display for LimitOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CgroupV2 => "cgroup_v2",
            Self::CgroupV1 => "cgroup_v1",
            Self::Host => "host",
        })
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// The smallest limit; `None` when none can be read.
    pub memory: Option<MemoryLimit>,
    /// Files that exist and could not be read as a limit: path and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

impl Machine {
    /// Reads the files below `root`, which is `/` but in tests.
    pub fn read(root: &Path) -> Self {
        let mut machine = Self::default();
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let host = host_memory(&text("proc/meminfo"));
        machine.consider(host, LimitOrigin::Host);
        let (groups, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
        for (hierarchy, group) in groups.lines().filter_map(hierarchy) {
            let mounts = mounts.lines().filter_map(Mount::parse);
            for mount in mounts.filter(|mount| mount.hierarchy == hierarchy) {
                for directory in mount.directories(group) {
                    let file = root.join(&directory[1..]).join(hierarchy.file());
                    machine.limit_file(&file, hierarchy);
                }
            }
        }
        machine
    }

    fn limit_file(&mut self, file: &Path, hierarchy: Hierarchy) {
        let limit = match fs::read_to_string(file) {
            Ok(text) => hierarchy.limit(text.trim()),
            // The root group has no limit and no file.
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
        };
        match limit {
            Ok(limit) => self.consider(limit, hierarchy.origin()),
            Err(why) => self.unreadable.push((file.to_owned(), why)),
        }
    }

    fn consider(&mut self, limit: Option<u64>, origin: LimitOrigin) {
        let Some(bytes) = limit.filter(|bytes| *bytes > 0) else {
            return;
        };
        if self.memory.is_none_or(|memory| bytes < memory.bytes) {
            self.memory = Some(MemoryLimit { bytes, origin });
        }
    }
}

fn host_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    V1,
    V2,
}

impl Hierarchy {
    fn file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    fn origin(self) -> LimitOrigin {
        match self {
            Self::V1 => LimitOrigin::CgroupV1,
            Self::V2 => LimitOrigin::CgroupV2,
        }
    }

    /// The limit in a file's text; `None` when it says that there is none.
    fn limit(self, text: &str) -> Result<Option<u64>, String> {
        if self == Self::V2 && text == "max" {
            return Ok(None);
        }
        let bytes: u64 = text
            .parse()
            .map_err(|_| "holds no number of bytes".to_owned())?;
        Ok(Some(bytes).filter(|bytes| self == Self::V2 || *bytes < V1_UNLIMITED))
    }
}

/// A line of `/proc/self/cgroup` that memory is accounted in: `0::/path` or `4:memory:/path`.
fn hierarchy(line: &str) -> Option<(Hierarchy, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if number == "0" && controllers.is_empty() {
        return Some((Hierarchy::V2, path));
    }
    let memory = controllers.split(',').any(|name| name == "memory");
    memory.then_some((Hierarchy::V1, path))
}

/// Where a hierarchy is mounted.
struct Mount<'a> {
    hierarchy: Hierarchy,
    /// The group that stands at the mount point; in a container often not `/`.
    group: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of `/proc/self/mountinfo`.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (group, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let kind = system.next()?;
        let options = system.nth(1).unwrap_or_default();
        let hierarchy = match kind {
            "cgroup2" => Hierarchy::V2,
            "cgroup" if options.split(',').any(|name| name == "memory") => Hierarchy::V1,
            _ => return None,
        };
        Some(Self {
            hierarchy,
            group,
            point,
        })
    }

    /// The directories of `group` and of all its parents that can be seen here. A group outside of
    /// the mount is that of another namespace: then the mount point is the nearest known parent.
    fn directories(&self, group: &str) -> Vec<String> {
        let below = match self.group {
            "/" => Some(group),
            root => group
                .strip_prefix(root)
                .filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        let mut names: Vec<&str> = below
            .unwrap_or_default()
            .split('/')
            .filter(|name| !name.is_empty())
            .collect();
        if names.contains(&"..") {
            names.clear();
        }
        (0..=names.len())
            .rev()
            .map(|depth| {
                let mut directory = self.point.trim_end_matches('/').to_owned();
                for name in &names[..depth] {
                    directory.push('/');
                    directory.push_str(name);
                }
                if directory.is_empty() {
                    directory.push('/');
                }
                directory
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
