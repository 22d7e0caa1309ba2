//! Makes a heartbeat fit for a batch (HB-6 to HB-8).
//!
//! A server refuses a whole batch for one heartbeat that it can't read, and says so in a way that
//! can't be told from an outage: one agent could silence all others. So whatever another
//! implementation of protobuf might refuse is repaired or cut here. Every other byte is the
//! agent's own. Must never decode or repair what is over the bounds.

use std::ops::Range;
use std::str::{Utf8Error, from_utf8};

use yuzu_proto::wire::{Field, WireError, WireValue, fields, put_bytes_field};

use super::loss::Loss;
use super::message::{Heartbeat, Snapshot};

const SESSION_ID: u32 = 1;
const SENT_AT: u32 = 2;
const STATUS_TAGS: u32 = 3;
const SNAPSHOT: u32 = 4;

const TAGS_MAX: usize = 512;
/// Largest key, and largest value.
const TAG_PART_MAX: usize = 64 << 10;
const TAG_BYTES_MAX: usize = 256 << 10;

/// Groups within groups. The contract has none; a server may stop at 100, the batch included, and
/// each level costs one more walk over the bytes.
const GROUP_DEPTH: usize = 4;
/// Bytes of a tag or a length. Ours reads padded ones of up to ten, gRPC C-core's servers do not.
const KEY_MAX: usize = 5;

/// What is left of a heartbeat, and what is not.
pub(super) struct Fit {
    /// A copy; `None` when nothing of it can be sent.
    pub(super) heartbeat: Option<Heartbeat>,
    /// Each at most once.
    pub(super) lost: Vec<Loss>,
}

/// Copies an encoded `HeartbeatRequest`, made fit for a batch that takes `largest` bytes of one.
pub(super) fn fit(message: &[u8], largest: usize) -> Fit {
    let mut lost = Vec::new();
    let heartbeat = Survey::of(message)
        .ok()
        .and_then(|survey| survey.copy(message, largest, &mut lost));
    if heartbeat.is_none() {
        lost.push(Loss::HeartbeatInvalid);
    }
    Fit { heartbeat, lost }
}

/// Some server might not read it.
struct Unfit;

impl From<WireError> for Unfit {
    fn from(_: WireError) -> Self {
        Self
    }
}

impl From<Utf8Error> for Unfit {
    fn from(_: Utf8Error) -> Self {
        Self
    }
}

/// What is to happen to the tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tags {
    Keep,
    /// Repair what is no text, drop what is no tag.
    Repair,
    Cut,
}

/// What there is to know before anything is copied.
#[derive(Default)]
struct Survey {
    tags: TagCount,
    /// The last snapshot, if it is not empty. Those before it are overruled by it.
    snapshot: Option<Range<usize>>,
    /// Bytes of all snapshots.
    snapshot_bytes: usize,
}

impl Survey {
    /// Fails for what can not be part of a batch at all.
    fn of(message: &[u8]) -> Result<Self, Unfit> {
        let mut survey = Self::default();
        let mut named = false;
        for field in sound_fields(message) {
            let field = field?;
            match field.number {
                SESSION_ID => named = !from_utf8(field.bytes()?)?.is_empty(),
                SENT_AT => timestamp(field.bytes()?)?,
                STATUS_TAGS => survey.tags.add(&field),
                SNAPSHOT => {
                    let empty = field.bytes()?.is_empty();
                    survey.snapshot_bytes += field.range.len();
                    survey.snapshot = (!empty).then_some(field.range);
                }
                _ => {}
            }
        }
        named.then_some(survey).ok_or(Unfit)
    }

    fn copy(self, message: &[u8], largest: usize, lost: &mut Vec<Loss>) -> Option<Heartbeat> {
        let unedited = message.len() - self.snapshot_bytes;
        let mut tags = match unedited > largest {
            true => Tags::Cut,
            false => self.tags.verdict(),
        };
        let (mut rest, mut at) = self.rest(message, tags);
        // A repair makes tags longer.
        if rest.len() > largest && tags == Tags::Repair {
            tags = Tags::Cut;
            (rest, at) = self.rest(message, tags);
        }
        match tags {
            Tags::Cut if self.tags.count > 0 => lost.push(Loss::HeartbeatOversize),
            Tags::Repair => lost.push(Loss::HeartbeatInvalid),
            Tags::Cut | Tags::Keep => {}
        }
        if rest.len() > largest {
            return None;
        }
        let fits = |snapshot: &Range<usize>| rest.len() + snapshot.len() <= largest;
        if self.snapshot.as_ref().is_some_and(|range| !fits(range)) {
            lost.push(Loss::SnapshotOversize);
        }
        let snapshot = self.snapshot.filter(fits);
        let snapshot = snapshot.map(|range| (at, Snapshot::new(&message[range])));
        Some(Heartbeat::new(rest.into(), snapshot))
    }

    /// The message without snapshots, and where the last one stood.
    fn rest(&self, message: &[u8], tags: Tags) -> (Vec<u8>, usize) {
        if self.snapshot_bytes == 0 && tags == Tags::Keep {
            return (message.to_vec(), 0);
        }
        let mut rest = Vec::with_capacity(message.len() - self.snapshot_bytes);
        let (mut at, mut kept_from) = (0, 0);
        for field in fields(message).map_while(Result::ok) {
            let edited = match field.number {
                SNAPSHOT => true,
                STATUS_TAGS => tags != Tags::Keep,
                _ => false,
            };
            if !edited {
                continue;
            }
            rest.extend_from_slice(&message[kept_from..field.range.start]);
            kept_from = field.range.end;
            if field.number == SNAPSHOT {
                at = rest.len();
            } else if tags == Tags::Repair {
                put_repaired(message, &field, &mut rest);
            }
        }
        rest.extend_from_slice(&message[kept_from..]);
        (rest, at)
    }
}

/// The tags of one heartbeat.
#[derive(Default)]
struct TagCount {
    count: usize,
    bytes: usize,
    over: bool,
    broken: bool,
}

impl TagCount {
    fn add(&mut self, field: &Field<'_>) {
        self.count += 1;
        match Tag::read(field) {
            Ok(tag) => {
                self.bytes += tag.bytes;
                self.over |= tag.largest > TAG_PART_MAX;
                self.broken |= !tag.is_text;
            }
            Err(_) => self.broken = true,
        }
        self.over |= self.count > TAGS_MAX || self.bytes > TAG_BYTES_MAX;
    }

    /// The bounds come first: repairing megabytes takes long (HB-7).
    fn verdict(&self) -> Tags {
        match (self.over, self.broken) {
            (true, _) => Tags::Cut,
            (false, true) => Tags::Repair,
            (false, false) => Tags::Keep,
        }
    }
}

/// What there is to know of an entry of `status_tags`.
#[derive(Default)]
struct Tag {
    bytes: usize,
    largest: usize,
    is_text: bool,
}

impl Tag {
    fn read(field: &Field<'_>) -> Result<Self, Unfit> {
        let mut tag = Self {
            is_text: true,
            ..Self::default()
        };
        for part in sound_fields(field.bytes()?) {
            let part = part?;
            if let 1 | 2 = part.number {
                let content = part.bytes()?;
                tag.bytes += content.len();
                tag.largest = tag.largest.max(content.len());
                tag.is_text =
                    tag.is_text && tag.largest <= TAG_PART_MAX && from_utf8(content).is_ok();
            }
        }
        Ok(tag)
    }
}

/// Writes an entry of `status_tags` with U+FFFD in place of what is no text, or nothing if it is
/// no entry.
fn put_repaired(message: &[u8], field: &Field<'_>, out: &mut Vec<u8>) {
    let (Ok(entry), Ok(tag)) = (field.bytes(), Tag::read(field)) else {
        return;
    };
    if tag.is_text {
        out.extend_from_slice(&message[field.range.clone()]);
        return;
    }
    let mut repaired = Vec::with_capacity(entry.len());
    for part in fields(entry).map_while(Result::ok) {
        match part.value {
            WireValue::Bytes(content) if part.number <= 2 => {
                let text = String::from_utf8_lossy(content);
                put_bytes_field(&mut repaired, part.number, text.as_bytes());
            }
            _ => repaired.extend_from_slice(&entry[part.range]),
        }
    }
    put_bytes_field(out, STATUS_TAGS, &repaired);
}

/// The fields of a message as every implementation of protobuf reads them, or an error.
fn sound_fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Unfit>> {
    fields(message).map(|field| {
        let field = field?;
        sound(message, &field, GROUP_DEPTH)?;
        Ok(field)
    })
}

fn sound(message: &[u8], field: &Field<'_>, depth: usize) -> Result<(), Unfit> {
    let encoded = &message[field.range.clone()];
    let key = 1 + encoded.iter().take_while(|byte| **byte >= 0x80).count();
    let length = match field.value {
        WireValue::Bytes(_) => field.payload.start - field.range.start - key,
        _ => 0,
    };
    if key > KEY_MAX || length > KEY_MAX {
        return Err(Unfit);
    }
    if let WireValue::Group(content) = field.value {
        let depth = depth.checked_sub(1).ok_or(Unfit)?;
        for inner in fields(content) {
            sound(content, &inner?, depth)?;
        }
    }
    Ok(())
}

/// Checks a `Timestamp`.
fn timestamp(message: &[u8]) -> Result<(), Unfit> {
    for field in sound_fields(message) {
        let field = field?;
        if field.number == 1 {
            field.varint()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
