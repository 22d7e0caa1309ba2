//! Fault rules and enrolment modes in JSON.
//!
//! Responsible for reading them with errors that name the field. Must never accept a rule that
//! names what its action does not use.

use std::collections::HashSet;
use std::time::Duration;

use tonic::Code;
use yuzu_proto::gateway::v1::stream_status_notification::Event;

use super::input::{self, BadInput, Object, from_hex, missing};
use crate::config::Enrolment;
use crate::faults::{Action, Fault, Filter, Garbage};

const MAX_DELAY_MS: u64 = 3_600_000;
const ACTIONS: &str =
    "delay, status, hang, drop_connection, reset_stream, garbage, refuse or answer";
const GARBAGE: [(&str, Garbage); 5] = [
    ("message", Garbage::Message),
    ("frame", Garbage::Frame),
    ("compressed", Garbage::Compressed),
    ("http", Garbage::Http),
    ("no_status", Garbage::NoStatus),
];
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Reads a rule; the caller refuses what is left.
pub(crate) fn fault(body: &mut Object) -> Result<Fault, BadInput> {
    let rpc = input::rpc(body)?.ok_or_else(|| missing("rpc", "name an RPC"))?;
    let kind = body
        .text("action")?
        .ok_or_else(|| missing("action", &format!("send {ACTIONS}")))?;
    let mut fault = Fault::new(rpc, action(&kind, body)?);
    fault.after = body.number("after", 0, u64::MAX)?.unwrap_or(0);
    fault.every = body.number("every", 1, u64::MAX)?.unwrap_or(1);
    fault.times = body.number("times", 1, u64::MAX)?;
    fault.filter = Filter {
        agent_id: body.text("agent_id")?,
        event: body.parsed("event", "CONNECTED or DISCONNECTED", Event::from_str_name)?,
        replay: body.maybe_flag("replay")?,
    };
    fault.with_effect = body.flag("with_effect")?;
    Ok(fault)
}

fn action(kind: &str, body: &mut Object) -> Result<Action, BadInput> {
    Ok(match kind {
        "delay" => {
            let ms = body.number("ms", 1, MAX_DELAY_MS)?;
            let ms = ms.ok_or_else(|| missing("ms", "send the delay in milliseconds"))?;
            Action::Delay(Duration::from_millis(ms))
        }
        "status" => {
            let code = body.parsed("code", "a status in capitals but OK, as UNAVAILABLE", code)?;
            let code = code.ok_or_else(|| missing("code", "send a status, as UNAVAILABLE"))?;
            Action::Status(code, body.text("message")?.unwrap_or_default())
        }
        "hang" => Action::Hang,
        "drop_connection" => Action::DropConnection,
        "reset_stream" => {
            let code = body.number("code", 0, u64::from(u32::MAX))?;
            let code = code.ok_or_else(|| missing("code", "send an HTTP/2 error code, as 7"))?;
            Action::ResetStream(u32::try_from(code).unwrap_or(u32::MAX))
        }
        "garbage" => {
            let choices = "message, frame, compressed, http or no_status";
            let kind = body.parsed("kind", choices, |text| {
                GARBAGE
                    .into_iter()
                    .find(|(name, _)| *name == text)
                    .map(|(_, kind)| kind)
            })?;
            Action::Garbage(kind.unwrap_or(Garbage::Message))
        }
        "refuse" => Action::Refuse,
        "answer" => {
            let bytes = body.parsed("hex", "pairs of hex digits", from_hex)?;
            Action::Answer(
                bytes
                    .ok_or_else(|| missing("hex", "send the message in hex"))?
                    .into(),
            )
        }
        _ => {
            return Err(BadInput::new(
                "action",
                "is not known",
                &format!("send {ACTIONS}"),
            ));
        }
    })
}

fn code(text: &str) -> Option<Code> {
    let number = CODES.iter().position(|name| *name == text)?;
    i32::try_from(number)
        .ok()
        .map(Code::from)
        .filter(|code| *code != Code::Ok)
}

/// Reads an enrolment mode and its tokens.
pub(crate) fn enrolment(body: &mut Object) -> Result<Enrolment, BadInput> {
    const MODES: &str = "send open, tokens, pending or denied";
    let mode = body.text("mode")?.ok_or_else(|| missing("mode", MODES))?;
    let tokens: HashSet<String> = body.texts("tokens")?.into_iter().collect();
    if mode != "tokens" && !tokens.is_empty() {
        return Err(BadInput::new(
            "tokens",
            "has no use in this mode",
            "send mode tokens",
        ));
    }
    Ok(match mode.as_str() {
        "open" => Enrolment::Open,
        "pending" => Enrolment::Pending,
        "denied" => Enrolment::Denied,
        "tokens" if tokens.is_empty() => {
            return Err(missing("tokens", "send at least one token, or mode denied"));
        }
        "tokens" => Enrolment::Tokens(tokens),
        _ => return Err(BadInput::new("mode", "is not known", MODES)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::Rpc;

    fn read(text: &str) -> Result<Fault, BadInput> {
        let mut body = Object::from_body(text.as_bytes())?;
        let fault = fault(&mut body)?;
        body.finish()?;
        Ok(fault)
    }

    #[test]
    fn a_rule_in_json_is_the_rule_in_code() {
        let text = r#"{"rpc":"NotifyStreamStatus","action":"status","code":"UNAVAILABLE",
            "message":"m","after":1,"every":2,"times":3,"agent_id":"a","event":"CONNECTED",
            "replay":false,"with_effect":true}"#;
        let action = Action::Status(Code::Unavailable, "m".into());
        let rule = Fault::new(Rpc::NotifyStreamStatus, action)
            .after(1)
            .every(2)
            .times(3);
        let rule = rule
            .agent("a")
            .event(Event::Connected)
            .replay(false)
            .with_effect();
        assert_eq!(read(text), Ok(rule));
        let answer = read(r#"{"rpc":"ProxyInventory","action":"answer","hex":"0801"}"#).unwrap();
        assert_eq!(answer.action, Action::Answer(vec![8, 1].into()));
    }

    #[test]
    fn status_names_stand_at_their_numbers() {
        assert_eq!(code("UNAUTHENTICATED"), Some(Code::Unauthenticated));
        assert_eq!(code("CANCELLED"), Some(Code::Cancelled));
        assert_eq!(code("ABORTED"), Some(Code::Aborted));
        assert_eq!(
            (code("OK"), code("unavailable"), code("14")),
            (None, None, None)
        );
    }

    #[test]
    fn a_bad_rule_names_its_field() {
        let cases = [
            (r#"{"action":"hang"}"#, "rpc"),
            (r#"{"rpc":"Register","action":"hang"}"#, "rpc"),
            (r#"{"rpc":"ProxyRegister"}"#, "action"),
            (r#"{"rpc":"ProxyRegister","action":"hung"}"#, "action"),
            (r#"{"rpc":"ProxyRegister","action":"delay"}"#, "ms"),
            (r#"{"rpc":"ProxyRegister","action":"delay","ms":0}"#, "ms"),
            (
                r#"{"rpc":"ProxyRegister","action":"status","code":"OK"}"#,
                "code",
            ),
            (
                r#"{"rpc":"ProxyRegister","action":"garbage","kind":"x"}"#,
                "kind",
            ),
            (
                r#"{"rpc":"ProxyRegister","action":"answer","hex":"0"}"#,
                "hex",
            ),
            (r#"{"rpc":"ProxyRegister","action":"hang","ms":5}"#, "ms"),
            (
                r#"{"rpc":"ProxyRegister","action":"hang","every":0}"#,
                "every",
            ),
            (
                r#"{"rpc":"ProxyRegister","action":"hang","event":"x"}"#,
                "event",
            ),
        ];
        for (text, field) in cases {
            let bad = read(text).unwrap_err().to_json();
            assert_eq!(bad["field"], field, "{text}");
            assert_ne!(bad["fix"], "", "{text}");
        }
    }
}
