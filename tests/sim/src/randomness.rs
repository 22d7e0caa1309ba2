//! Random numbers of the system, out of the seed.
//!
//! Everything that asks the system for random bytes (nonces, jitter, the keys of hash maps, the
//! choices of the membership engine) ends in the C function `getrandom`. The one below takes its
//! place in this program: on a thread with a seed it gives what follows from the seed. Each seed
//! runs on a thread of its own, since a thread keeps what it once derived from random bytes. Must
//! never be linked into anything that is deployed.

use std::cell::RefCell;

use yuzu_tests::random::Random;

thread_local! {
    static SEEDED: RefCell<Option<Random>> = const { RefCell::new(None) };
}

/// From now on what this thread asks for follows from `seed`.
pub fn seed_this_thread(seed: u64) {
    SEEDED.set(Some(Random::new(seed)));
}

/// Fills `bytes` if this thread has a seed.
fn fill(bytes: &mut [u8]) -> bool {
    let filled = SEEDED.try_with(|seeded| {
        let mut seeded = seeded.borrow_mut();
        let Some(random) = seeded.as_mut() else {
            return false;
        };
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.any().to_ne_bytes()[..chunk.len()]);
        }
        true
    });
    // The thread is ending.
    filled.unwrap_or(false)
}

/// See getrandom(2).
///
/// # Safety
/// `buffer` has room for `length` bytes.
// The only unsafe code: a symbol of the C library can't be replaced without.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
    if buffer.is_null() || length == 0 {
        return 0;
    }
    // Zeroed first, since what is there may not have been written yet.
    let bytes = unsafe {
        buffer.write_bytes(0, length);
        std::slice::from_raw_parts_mut(buffer, length)
    };
    if fill(bytes) {
        return length as isize;
    }
    let flags = rustix::rand::GetRandomFlags::from_bits_truncate(flags);
    match rustix::rand::getrandom(bytes, flags) {
        Ok(given) => given as isize,
        Err(_) => -1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;

    use super::*;

    fn hashes(seed: u64) -> (u64, u64) {
        let thread = std::thread::spawn(move || {
            seed_this_thread(seed);
            let hash = || RandomState::new().hash_one("agent");
            (hash(), hash())
        });
        thread.join().expect("no panic")
    }

    #[test]
    fn hash_maps_follow_the_seed() {
        assert_eq!(hashes(1), hashes(1));
        assert_ne!(hashes(1), hashes(2));
    }
}
