//! Memory that the machine has at hand.
//!
//! A virtual machine with a balloon gives pages that nobody uses back to its host, and has to be
//! given them again when they are touched: a fresh page then costs four times as much processor
//! time (2.8 and 11.6 us were seen), and whether it does depends on what ran here before.
//! Responsible for having the pages of a growing load touched before they are counted, and for
//! giving them to it just when it needs them. Must never be part of a process's own memory.

use std::fs::{self, File};
use std::io::Write;

use rustix::fs::{MemfdFlags, memfd_create};
use yuzu_tests::process::bytes_of;

const STEP: usize = 1 << 20;

/// Pages that are touched and held in no process.
pub(crate) struct Ballast {
    pages: File,
    left: u64,
}

impl Ballast {
    /// Takes so many bytes.
    ///
    /// # Errors
    /// When the machine has no such memory.
    pub(crate) fn take(bytes: u64) -> Result<Self, String> {
        let text = fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
        let available =
            bytes_of("MemAvailable:", &text).ok_or("/proc/meminfo has no MemAvailable")?;
        if bytes > available {
            return Err(format!("{bytes} bytes are needed, {available} available"));
        }
        let pages = memfd_create("ballast", MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let mut pages = File::from(pages);
        let step = vec![0; STEP];
        let mut left = 0;
        while left < bytes {
            pages.write_all(&step).map_err(|e| e.to_string())?;
            left += STEP as u64;
        }
        Ok(Self { pages, left })
    }

    /// Gives so many bytes to whoever touches fresh pages next; at most those that are left.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(crate) fn give(&mut self, bytes: u64) -> Result<(), String> {
        self.left = self.left.saturating_sub(bytes);
        self.pages.set_len(self.left).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(Ballast::take(u64::MAX).is_err());
    }

    #[test]
    fn what_is_given_is_no_longer_held() {
        let held = |ballast: &Ballast| {
            use std::os::unix::fs::MetadataExt;
            ballast.pages.metadata().expect("a file").blocks() * 512
        };
        let mut ballast = Ballast::take(3 << 20).expect("memory");
        assert_eq!(held(&ballast), 3 << 20);
        ballast.give(1 << 20).expect("a file");
        assert_eq!(held(&ballast), 2 << 20);
        ballast.give(5 << 20).expect("a file");
        assert_eq!(held(&ballast), 0);
    }
}
