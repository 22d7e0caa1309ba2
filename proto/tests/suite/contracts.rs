//! Random messages of every type of the contracts, made from their descriptors: fields in any
//! order, scalars and embedded messages several times, unknown fields in between at every level.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::generate::{Value, any_field};

/// How deep messages nest; what is deeper stays empty.
const DEPTH: u32 = 3;

/// All messages by full name, map entries included.
static MESSAGES: LazyLock<BTreeMap<String, DescriptorProto>> = LazyLock::new(|| {
    let encoded = include_bytes!(concat!(env!("OUT_DIR"), "/contracts.binpb"));
    let files = FileDescriptorSet::decode(&encoded[..]).expect("written by the build script");
    let mut messages = BTreeMap::new();
    for file in files.file {
        collect(
            &format!(".{}", file.package()),
            file.message_type,
            &mut messages,
        );
    }
    messages
});

fn collect(
    scope: &str,
    descriptors: Vec<DescriptorProto>,
    messages: &mut BTreeMap<String, DescriptorProto>,
) {
    for descriptor in descriptors {
        let name = format!("{scope}.{}", descriptor.name());
        collect(&name, descriptor.nested_type.clone(), messages);
        messages.insert(name, descriptor);
    }
}

/// Full names of the messages that have a Rust type: all but the map entries.
pub(crate) fn message_names() -> impl Iterator<Item = &'static str> {
    MESSAGES
        .iter()
        .filter(|(_, message)| {
            !message
                .options
                .as_ref()
                .is_some_and(|options| options.map_entry())
        })
        .map(|(name, _)| name.as_str())
}

/// The fields of the message `name`.
pub(crate) fn fields_of(name: &str) -> &'static [FieldDescriptorProto] {
    &MESSAGES
        .get(name)
        .unwrap_or_else(|| panic!("{name} is in no contract"))
        .field
}

/// Numbers that no message of the contracts uses, up to the largest possible one.
fn unknown_number() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![40_u32..60, 1000_u32..70_000, Just((1 << 29) - 1)]
}

/// The fields of a random message `name`, each with its number.
pub(crate) fn message_fields(name: &str) -> BoxedStrategy<Vec<(u32, Vec<u8>)>> {
    fields_to_depth(name, DEPTH)
}

/// A random message `name`.
pub(crate) fn message(name: &str) -> BoxedStrategy<Vec<u8>> {
    message_fields(name).prop_map(joined).boxed()
}

/// Encoded fields put together.
pub(crate) fn joined(fields: Vec<(u32, Vec<u8>)>) -> Vec<u8> {
    fields.into_iter().flat_map(|(_, bytes)| bytes).collect()
}

fn fields_to_depth(name: &str, depth: u32) -> BoxedStrategy<Vec<(u32, Vec<u8>)>> {
    let unknown = unknown_number()
        .prop_flat_map(|number| (Just(number), any_field(Just(number))))
        .boxed();
    let mut choices = vec![unknown];
    for field in fields_of(name) {
        let number = u32::try_from(field.number()).expect("positive");
        let encoded =
            field_value(field, depth).prop_map(move |value| (number, value.encode(number)));
        choices.push(encoded.boxed());
    }
    vec(proptest::strategy::Union::new(choices), 0..10).boxed()
}

fn field_value(field: &FieldDescriptorProto, depth: u32) -> BoxedStrategy<Value> {
    let varint = |numbers: BoxedStrategy<u64>| {
        (numbers, 0..4_u8)
            .prop_map(|(n, p)| Value::Varint(n, p))
            .boxed()
    };
    match field.r#type() {
        Type::String => text()
            .prop_map(|text| Value::Bytes(text.into_bytes()))
            .boxed(),
        Type::Bytes => vec(any::<u8>(), 0..40).prop_map(Value::Bytes).boxed(),
        // Wider than 32 bits too: decoders keep the low half.
        Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 => {
            varint(prop_oneof![0..300_u64, any::<u64>()].boxed())
        }
        Type::Fixed64 => any::<u64>().prop_map(Value::Fixed64).boxed(),
        Type::Enum | Type::Bool => varint(prop_oneof![0..6_u64, any::<u64>()].boxed()),
        Type::Message if depth == 0 => Just(Value::Bytes(Vec::new())).boxed(),
        Type::Message => fields_to_depth(field.type_name(), depth - 1)
            .prop_map(|fields| Value::Bytes(joined(fields)))
            .boxed(),
        other => panic!("the contracts have no {other:?} so far"),
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z_]{1,12}", "\\PC{0,40}"]
}

/// What the tests do with a message type, whichever it is.
#[derive(Clone, Copy)]
pub(crate) struct MessageType {
    pub(crate) name: &'static str,
    /// Decodes with prost and encodes again.
    pub(crate) recode: fn(&[u8]) -> Result<Vec<u8>, prost::DecodeError>,
    /// Decodes with prost and prints for debugging.
    pub(crate) print: fn(&[u8]) -> Result<String, prost::DecodeError>,
}

fn recode<M: Message + Default>(bytes: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
    M::decode(bytes).map(|message| message.encode_to_vec())
}

fn print<M: Message + Default + std::fmt::Debug>(
    bytes: &[u8],
) -> Result<String, prost::DecodeError> {
    M::decode(bytes).map(|message| format!("{message:?}"))
}

macro_rules! types {
    ($($package:ident: $($message:ident)+;)+) => {
        /// Every message type of the contracts.
        pub(crate) const TYPES: &[MessageType] = &[$($(MessageType {
            name: concat!(".yuzu.", stringify!($package), ".v1.", stringify!($message)),
            recode: recode::<yuzu_proto::$package::v1::$message>,
            print: print::<yuzu_proto::$package::v1::$message>,
        },)+)+];
    };
}

types! {
    common: Platform PluginInfo ErrorDetail Timestamp ScopeExpression ScopeCondition
        ScopeCombinator;
    agent: AgentInfo RegisterRequest RegisterResponse HeartbeatRequest HeartbeatResponse
        CommandRequest CommandResponse InventoryReport InventoryAck CheckForUpdateRequest
        CheckForUpdateResponse DownloadUpdateRequest DownloadUpdateChunk;
    gateway: BatchHeartbeatRequest BatchHeartbeatResponse StreamStatusNotification StreamStatusAck
        ForwardGuardianRequest ForwardGuardianAck;
    server: ListAgentsRequest AgentSummary ListAgentsResponse GetAgentRequest GetAgentResponse
        SendCommandRequest SendCommandResponse WatchEventsRequest AgentEvent AgentConnected
        AgentDisconnected AgentPluginLoaded QueryInventoryRequest QueryInventoryResponse;
    node: NodeIdentity HelloRequest HelloResponse ProveRequest ProveResponse AgentsFrame AgentsStart
        AgentChanges AgentChange AgentRow AgentRows AgentDigests AgentsApplied AgentQuestion
        AgentDescription ForwardFrame ForwardOpen ForwardResume ForwardDispatch ForwardReceived
        ForwardWritten ForwardAnswers ForwardEnd ForwardRefused ForwardResumed ForwardOffer
        OffersRequest;
}

/// A message type and the fields of a random message of it.
pub(crate) fn any_message() -> impl Strategy<Value = (MessageType, Vec<(u32, Vec<u8>)>)> {
    let each = TYPES
        .iter()
        .map(|of| (Just(*of), message_fields(of.name)).boxed());
    proptest::strategy::Union::new(each.collect::<Vec<_>>())
}

impl std::fmt::Debug for MessageType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[test]
fn no_message_of_the_contracts_is_forgotten() {
    let mut listed: Vec<_> = TYPES.iter().map(|of| of.name).collect();
    listed.sort_unstable();
    assert_eq!(listed, message_names().collect::<Vec<_>>());
}
