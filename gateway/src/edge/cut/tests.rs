use proptest::collection::vec;
use proptest::prelude::*;

use super::super::flood::FrameScanner;
use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// A frame of stream 5 whose payload tells where in it each byte is.
fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
    let mut out = (length as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags, 0, 0, 0, 5]);
    out.extend((0..length).map(|at| (at % 251) as u8));
    out
}

/// What comes out for `bytes` that are read in steps of these sizes, round and round.
fn handed_on(bytes: &[u8], steps: &[usize]) -> Vec<u8> {
    let (mut scanner, mut cutter) = (FrameScanner::default(), Cutter::default());
    let (mut out, mut left, mut steps) = (Vec::new(), bytes, steps.iter().cycle());
    while !left.is_empty() || !cutter.due().is_empty() {
        let step = *steps.next().unwrap();
        let header = step.min(cutter.due().len());
        out.extend(&cutter.due()[..header]);
        cutter.handed_on(header);
        let read = (step - header).min(cutter.room().unwrap_or(usize::MAX));
        let (now, later) = left.split_at(read.min(left.len()));
        let mut now = now.to_vec();
        cutter.passed(now.len());
        if let Some(frame) = scanner.scan(&now, |_| ()).unfinished {
            cutter.cut(&mut now, frame);
        }
        out.extend(now);
        left = later;
    }
    out
}

/// Kind, flags and payload of the frames behind the preface.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    let mut all = Vec::new();
    bytes = &bytes[PREFACE.len()..];
    while !bytes.is_empty() {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        assert_eq!(bytes[5..HEADER], [0, 0, 0, 5]);
        let payload = bytes[HEADER..HEADER + length].to_vec();
        all.push((bytes[3], bytes[FLAGS], payload));
        bytes = &bytes[HEADER + length..];
    }
    all
}

/// The same with DATA frames of one stream joined up to the one that ends it.
fn joined(frames: Vec<(u8, u8, Vec<u8>)>) -> Vec<(u8, u8, Vec<u8>)> {
    let mut all: Vec<(u8, u8, Vec<u8>)> = Vec::new();
    for (kind, flags, payload) in frames {
        match all.last_mut() {
            Some((DATA, before, data)) if kind == DATA && *before == 0 => {
                data.extend(payload);
                *before = flags;
            }
            _ => all.push((kind, flags, payload)),
        }
    }
    all
}

fn conversation(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut all = PREFACE.to_vec();
    parts.iter().for_each(|part| all.extend(part));
    all
}

#[test]
fn a_long_frame_comes_in_pieces_and_only_the_last_ends_the_stream() {
    let bytes = conversation(&[frame(DATA, FLAG_END_STREAM, 9_059)]);
    // What a first read into 8 KiB finds.
    let out = frames(&handed_on(&bytes, &[8 << 10]));
    let shape: Vec<_> = out.iter().map(|(_, flags, p)| (*flags, p.len())).collect();
    assert_eq!(shape, [(0, 8_192 - 24 - 9), (FLAG_END_STREAM, 900)]);

    let late = handed_on(&bytes, &[24 + 9 + 100, 8 << 10]);
    let late = frames(&late);
    let shape: Vec<_> = late.iter().map(|(_, flags, p)| (*flags, p.len())).collect();
    assert_eq!(shape, [(0, 4_087), (0, 4_087), (FLAG_END_STREAM, 885)]);
    assert_eq!(joined(late), joined(out));
}

#[test]
fn what_is_whole_short_padded_too_long_or_not_data_stays_as_it_is() {
    let untouched = [
        frame(DATA, 0, 4_087),
        frame(DATA, FLAG_PADDED, 9_000),
        frame(HEADERS, 4, 9_000),
        frame(DATA, 0, 16_385),
    ];
    for part in untouched {
        let bytes = conversation(&[part]);
        assert_eq!(handed_on(&bytes, &[1_000]), bytes);
    }
    let whole = conversation(&[frame(DATA, FLAG_END_STREAM, 9_000)]);
    assert_eq!(handed_on(&whole, &[10_000]), whole);
}

proptest! {
    #[test]
    fn the_payload_and_the_end_of_the_stream_survive_any_reads(
        parts in vec((prop_oneof![Just(DATA), Just(HEADERS)], 0..2_u8, 0..17_000_usize), 1..6),
        steps in vec(1..9_000_usize, 1..5),
    ) {
        let parts: Vec<_> = parts.into_iter().map(|(kind, flags, n)| frame(kind, flags, n)).collect();
        let bytes = conversation(&parts);
        let out = handed_on(&bytes, &steps);
        prop_assert_eq!(joined(frames(&out)), joined(frames(&bytes)));
    }

    #[test]
    fn no_piece_is_longer_than_it_may_be_unless_it_is_all_there(
        length in 4_088..16_385_usize,
        first in 0..4_087_usize,
        step in 1..9_000_usize,
    ) {
        let bytes = conversation(&[frame(DATA, 0, length)]);
        let mut steps = vec![24 + 9 + first];
        steps.extend([step; 20_000]);
        for (_, _, payload) in frames(&handed_on(&bytes, &steps)) {
            prop_assert!(payload.len() <= 4_087);
        }
    }
}
