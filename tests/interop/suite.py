"""Real gRPC C-core peers around one gateway process: agent, server and operator.

Usage: suite.py [part of a test's name]. The contract that the peers speak comes from
INTEROP_CONTRACT (see contract.py). Prints one line per test and `N passed, N failed`.
"""

import re
import signal
import sys
import time
import traceback

import grpc

import tls
from agent import Agent
from contract import FAILURE, NAME, RUNNING, SUCCESS, agent, common, management
from gateway_process import Gateway
from operator_client import Operator
from rig import CONNECTED, DISCONNECTED, Rig, equal, fields, filled, frames, status
from server import Server, new_session_id

CAPABILITY = "command_dispatch_tag_v1"
MIB = 1 << 20
# Marks what must never be seen in a log.
SECRET = "never-in-a-log"


def cmd_6_a_command_reaches_its_agent_and_every_frame_comes_back(rig):
    peer = rig.connected()
    answers = rig.operator.send([peer.agent_id], "c-1", parameters={"path": SECRET})
    equal(frames(answers), [
        (RUNNING, "os.uptime at work"), (RUNNING, "__timing__|exec_ms=1"), (SUCCESS, "done")])
    equal({a.agent_id for a in answers}, {peer.agent_id})
    equal({a.response.command_id for a in answers}, {"c-1"})
    command = peer.commands.get(timeout=5)
    equal(command.parameters["path"], SECRET)


def cmd_1_a_broadcast_reaches_every_agent_once(rig):
    peers = [rig.connected(str(n)) for n in range(5)]
    answers = rig.operator.send([], "c-all")
    done = [a.agent_id for a in answers if a.response.status == SUCCESS]
    for peer in peers:
        equal(done.count(peer.agent_id), 1)
        equal(peer.commands.get(timeout=5).command_id, "c-all")
        assert peer.commands.empty()


def cmd_3_an_unknown_agent_is_not_connected(rig):
    answers = rig.operator.send(["nobody"], "c-nobody")
    expected = agent.CommandResponse(
        command_id="c-nobody", status=FAILURE, output="not_connected", exit_code=-1)
    equal([(a.agent_id, a.response) for a in answers], [("nobody", expected)])


def cmd_4_an_agent_that_leaves_is_disconnected(rig):
    peer = rig.connected(answer=lambda command: [])
    stream = rig.operator.start([peer.agent_id], "c-gone")
    peer.commands.get(timeout=5)
    peer.close()
    expected = agent.CommandResponse(
        command_id="c-gone", status=FAILURE, output="agent_disconnected", exit_code=-1)
    equal([(a.agent_id, a.response) for a in stream], [(peer.agent_id, expected)])


def cmd_9_a_silent_agent_ends_at_the_timeout_without_an_entry(rig):
    peer = rig.connected(answer=lambda command: [])
    begin = time.monotonic()
    equal(rig.operator.send([peer.agent_id], "c-silent", timeout_seconds=1), [])
    took = time.monotonic() - begin
    assert 0.9 < took < 5, f"{took:.1f} s instead of 1 s"


def cmd_5_three_mebibytes_pass_both_ways(rig):
    def echo(command):
        yield agent.CommandResponse(
            command_id=command.command_id, status=SUCCESS, payload=command.payload)

    payload = bytes(range(256)) * (3 * MIB // 256)
    peer = rig.connected(answer=echo)
    answers = rig.operator.send([peer.agent_id], "c-large", payload=payload)
    equal(len(answers), 1)
    assert answers[0].response.payload == payload
    assert peer.commands.get(timeout=5).payload == payload


def sub_7_the_server_hears_of_a_stream_and_of_its_end(rig):
    peer = rig.connected()
    begin = rig.notice(peer, CONNECTED)
    equal(begin.agent_id, peer.agent_id)
    equal(begin.gateway_node, "yuzu_gw@interop")
    equal(begin.cluster_id, "interop")
    equal(begin.peer_addr, "127.0.0.1")
    assert CAPABILITY in begin.wire_capabilities
    assert re.fullmatch("[0-9a-f]{32}", begin.stream_home_id), begin.stream_home_id
    peer.half_close()
    equal(peer.stream_status, grpc.StatusCode.OK)
    end = rig.notice(peer, DISCONNECTED)
    equal(end.stream_home_id, begin.stream_home_id)
    assert CAPABILITY in end.wire_capabilities


def sub_8_a_second_registration_takes_over(rig):
    old = rig.connected()
    new = Agent(rig.gateway.agent_address, old.agent_id)
    rig.agents.append(new)
    new.register()
    new.subscribe()
    rig.notice(new, CONNECTED)
    equal(len(rig.operator.send([new.agent_id], "c-new")), 3)
    equal(new.commands.get(timeout=5).command_id, "c-new")
    assert old.commands.empty()
    old.half_close()
    rig.notice(old, DISCONNECTED)
    equal(len(rig.operator.send([new.agent_id], "c-still")), 3)


def guard_1_an_unsolicited_guardian_frame_goes_to_the_server(rig):
    peer = rig.connected()
    frame = agent.CommandResponse(plugin="__guard__", status=SUCCESS, payload=b"\x00\xffevent")
    peer.send(frame)
    forwarded = rig.server.wait(
        "ForwardGuardianMessage", lambda r: r.agent_id == peer.agent_id)[0].request
    equal(forwarded.response, frame)


def hb_1_heartbeats_are_acknowledged_at_once_and_arrive_in_batches(rig):
    peer = rig.connected()
    sent_at = common.Timestamp(millis_epoch=1_700_000_000_123)
    answer = peer.heartbeat(
        sent_at=sent_at, status_tags={"os": "linux"}, fleet_snapshot_json=b'{"n":1}')
    assert answer.acknowledged
    assert abs(answer.server_time.millis_epoch / 1000 - time.time()) < 60
    equal(len(answer.pending_commands), 0)
    batch = rig.server.wait(
        "BatchHeartbeat",
        lambda r: any(h.session_id == peer.session_id for h in r.heartbeats))[0].request
    equal(batch.gateway_node, "yuzu_gw@interop")
    heartbeat = next(h for h in batch.heartbeats if h.session_id == peer.session_id)
    equal(heartbeat, agent.HeartbeatRequest(
        session_id=peer.session_id, sent_at=sent_at, status_tags={"os": "linux"},
        fleet_snapshot_json=b'{"n":1}'))


def inv_4_an_inventory_report_and_its_answer_pass(rig):
    peer = rig.connected()
    rig.server.inventory_answers[peer.session_id] = agent.InventoryAck(
        received=True, need_full=["packages", "users"])
    report = dict(plugin_data={"packages": b"\x00\x01"}, content_hashes={"packages": "ab"})
    answer = peer.report_inventory(**report)
    equal(answer, agent.InventoryAck(received=True, need_full=["packages", "users"]))
    proxied = rig.server.wait(
        "ProxyInventory", lambda r: r.session_id == peer.session_id)[0].request
    equal(proxied, agent.InventoryReport(session_id=peer.session_id, **report))


def reg_2_an_agent_id_is_1_to_256_bytes(rig):
    peer = rig.agent()
    text = "agent_id length exceeds 256 bytes or is empty"
    with status(grpc.StatusCode.INVALID_ARGUMENT, text):
        peer.register(info=agent.AgentInfo())
    with status(grpc.StatusCode.INVALID_ARGUMENT, text):
        peer.register(info=agent.AgentInfo(agent_id="x" * 257))
    assert peer.register(info=agent.AgentInfo(agent_id="x" * 256)).accepted
    equal(rig.server.calls("ProxyRegister", lambda r: len(r.info.agent_id) in (0, 257)), [])


def reg_3_a_refusal_by_the_servers_status_is_internal(rig):
    peer = rig.agent()
    rig.server.register_answers[peer.agent_id] = grpc.StatusCode.INVALID_ARGUMENT
    with status(grpc.StatusCode.INTERNAL):
        peer.register()


def reg_4_the_observed_peer_is_the_gateways_word(rig):
    peer = rig.agent()
    peer.register(gateway_observed_peer="203.0.113.9", enrollment_token=SECRET)
    request = rig.registration(peer).request
    equal(request.gateway_observed_peer, "127.0.0.1")
    equal(request.enrollment_token, SECRET)
    equal(request.info.hostname, f"{peer.agent_id}.example")


def reg_6_the_servers_answer_is_relayed_unchanged(rig):
    peer = rig.agent()
    answer = agent.RegisterResponse(
        session_id=new_session_id(), accepted=True, enrollment_status="enrolled",
        agent_credential=SECRET, issued_certificate="PEM\n" * 700, issued_ca_chain="chain")
    answer.pending_commands.add(command_id="first", payload=b"\x00\xff")
    rig.server.register_answers[peer.agent_id] = answer
    equal(peer.register(), answer)


def reg_7_a_refused_enrolment_is_ok_and_holds_nothing(rig):
    peer = rig.agent()
    answer = agent.RegisterResponse(
        session_id="", accepted=False, reject_reason="approval pending",
        enrollment_status="pending")
    rig.server.register_answers[peer.agent_id] = answer
    equal(peer.register(), answer)
    peer.subscribe("gw-session-" + "0" * 32)
    equal(peer.wait_stream_end(), grpc.StatusCode.NOT_FOUND)


def permit_5_the_server_gets_a_deadline_below_the_agents(rig):
    slow, hasty = rig.agent("slow"), rig.agent("hasty")
    slow.register(timeout=30)
    hasty.register(timeout=3)
    left = rig.registration(slow).time_remaining
    assert left is not None and 3 < left <= 5.1, f"{left} s left of an rpc timeout of 5 s"
    left = rig.registration(hasty).time_remaining
    assert left is not None and 0.5 < left <= 2.6, f"{left} s left of an agent deadline of 3 s"


def w_5_an_agents_metadata_stays_at_the_gateway(rig):
    peer = rig.agent()
    peer.register(metadata=(("x-yuzu-on-behalf-of", "admin"),))
    metadata = rig.registration(peer).metadata
    assert not [key for key in metadata if key.startswith("x-yuzu-")], metadata


def reg_11_a_request_the_server_could_not_take_is_internal(rig):
    peer = rig.agent()
    with status(grpc.StatusCode.INTERNAL):
        peer.register(machine_certificate=bytes(5 * MIB))
    equal(rig.server.calls("ProxyRegister", lambda r: r.info.agent_id == peer.agent_id), [])


def w_6_a_message_over_the_limit_is_refused_and_harms_nothing_else(rig):
    peer = rig.connected()
    with status(grpc.StatusCode.RESOURCE_EXHAUSTED):
        peer.report_inventory(plugin_data={"all": bytes(9 * MIB)})
    assert peer.heartbeat().acknowledged
    equal(len(rig.operator.send([peer.agent_id], "c-after")), 3)


def sub_1_a_stream_without_session_header_is_refused(rig):
    peer = rig.agent()
    peer.subscribe_without_session()
    equal(peer.wait_stream_end(), grpc.StatusCode.INVALID_ARGUMENT)


def sub_2_a_stream_for_an_unknown_or_used_session_is_refused(rig):
    peer = rig.connected()
    second = rig.agent("b")
    for session in (new_session_id(), peer.session_id):
        second.subscribe(session)
        equal(second.wait_stream_end(), grpc.StatusCode.NOT_FOUND)
    equal(len(rig.operator.send([peer.agent_id], "c-unharmed")), 3)


def admit_2_a_session_is_only_admitted_on_its_connection(rig):
    peer, other = rig.connected(), rig.connected("b")
    for session in (peer.session_id, new_session_id(), ""):
        with status(grpc.StatusCode.NOT_FOUND, "unknown session"):
            other.heartbeat(session)
        with status(grpc.StatusCode.NOT_FOUND, "unknown session"):
            other.report_inventory(session_id=session)
    assert peer.heartbeat().acknowledged


def lsn_9_methods_that_are_not_served_are_unimplemented(rig):
    peer = rig.agent()
    for call in (peer.check_for_update, peer.execute_command, peer.download_update):
        with status(grpc.StatusCode.UNIMPLEMENTED):
            call()
    stranger = Operator(rig.gateway.agent_address)
    with status(grpc.StatusCode.UNIMPLEMENTED):
        stranger.list_agents()
    stranger.close()


def lsn_12_pings_every_second_on_a_quiet_stream_are_answered(rig):
    peer = rig.connected(**{
        "grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 1_000})
    # The peer closes its connection a second after the first ping that is not answered.
    time.sleep(4)
    equal(len(rig.operator.send([peer.agent_id], "c-after-pings")), 3)
    equal(rig.server.calls("ProxyRegister", lambda r: r.info.agent_id == peer.agent_id)[1:], [])


def mgmt_1_agents_are_listed_page_by_page_in_order(rig):
    peers = [rig.connected(str(n)) for n in range(5)]
    listed = [a.agent_id for a in rig.operator.list_agents(limit=2)]
    equal(listed, sorted(listed))
    equal([a for a in listed if a.startswith(rig.test)], [p.agent_id for p in peers])


def mgmt_3_one_agent_is_described_and_an_unknown_one_is_not_found(rig):
    peer = rig.connected()
    found = rig.operator.get_agent(peer.agent_id)
    equal(found.summary.hostname, f"{peer.agent_id}.example")
    assert found.summary.online
    assert abs(found.summary.last_seen.millis_epoch / 1000 - time.time()) < 60
    equal([p.name for p in found.plugins], ["os"])
    with status(grpc.StatusCode.NOT_FOUND):
        rig.operator.get_agent("nobody")


def mgmt_4_connects_and_disconnects_are_told_as_they_happen(rig):
    watched = f"{rig.test}-a"
    stream = rig.operator.watch([watched])
    stream.initial_metadata()
    rig.connected("other")
    peer = rig.connected()
    event = next(stream)
    equal((event.agent_id, event.connected.session_id), (watched, peer.session_id))
    peer.half_close()
    event = next(stream)
    equal((event.agent_id, event.disconnected.reason), (watched, "normal"))
    stream.cancel()


def mgmt_5_the_connected_agents_are_summed_up(rig):
    peer = rig.connected()
    answer = rig.operator.query_inventory(agent_id=peer.agent_id)
    equal(answer.agent_id, peer.agent_id)
    equal(list(answer.plugin_data), [peer.agent_id])
    assert peer.session_id.encode() in answer.plugin_data[peer.agent_id]


def w_2_every_field_of_a_registration_passes(rig):
    peer = rig.agent()
    request, answer = filled(agent.RegisterRequest), filled(agent.RegisterResponse)
    request.info.agent_id = peer.agent_id
    answer.session_id, answer.accepted = new_session_id(), True
    rig.server.register_answers[peer.agent_id] = answer
    equal(peer.register(**fields(request)), answer)
    request.gateway_observed_peer = "127.0.0.1"
    equal(rig.registration(peer).request, request)


def w_2_every_field_of_a_command_and_its_answer_passes(rig):
    command, frame = filled(agent.CommandRequest), filled(agent.CommandResponse)
    command.command_id = frame.command_id = "c-filled"
    peer = rig.connected(answer=lambda command: [frame])
    request = management.SendCommandRequest(
        agent_ids=[peer.agent_id], command=command, timeout_seconds=10)
    answers = list(rig.operator.stub.SendCommand(request, timeout=30))
    equal([a.response for a in answers], [frame])
    equal(peer.commands.get(timeout=5), command)


def w_2_every_field_of_an_inventory_report_passes(rig):
    peer = rig.connected()
    report, answer = filled(agent.InventoryReport), filled(agent.InventoryAck)
    report.session_id = peer.session_id
    rig.server.inventory_answers[peer.session_id] = answer
    equal(peer.report_inventory(**fields(report)), answer)
    proxied = rig.server.wait(
        "ProxyInventory", lambda r: r.session_id == peer.session_id)[0].request
    equal(proxied, report)


def w_3_an_unknown_status_ends_a_command(rig):
    peer = rig.connected(answer=lambda command: [
        agent.CommandResponse(command_id=command.command_id, status=77)])
    equal(frames(rig.operator.send([peer.agent_id], "c-77")), [(77, "")])


def lsn_10_openssl_sees_1_2_and_1_3_over_tls(rig):
    for version in ("1.2", "1.3"):
        seen = tls.openssl(
            "s_client", "-connect", rig.gateway.agent_address, "-CAfile", tls.path("ca.pem"),
            "-verify_return_error", "-alpn", "h2", f"-tls{version.replace('.', '_')}")
        assert f"New, TLSv{version}" in seen, seen
        assert "ALPN protocol: h2" in seen, seen
        assert "No client certificate CA names sent" in seen, "a certificate is asked for"


def mgmt_auth_14_agents_and_gateways_are_refused_over_tls(rig):
    for own, reason in (("agent", "missing_server_auth_eku"), ("gateway", "no_uri_san")):
        sample = f'yuzu_gw_mgmt_auth_rejected_total{{reason="{reason}"}}'
        before = rig.gateway.metric(sample)
        stranger = Operator(rig.gateway.management_address, own)
        with status(grpc.StatusCode.UNAUTHENTICATED):
            stranger.list_agents()
        stranger.close()
        equal(rig.gateway.metric(sample), before + 1)
    rig.operator.list_agents()


def stop_4_sigterm_tells_the_server_of_every_session(rig):
    peers = [rig.connected(str(n)) for n in range(20)]
    exit_code = rig.gateway.terminate()
    equal(exit_code, 0)
    for peer in peers:
        peer.wait_stream_end()
        begin, end = rig.notice(peer, CONNECTED), rig.notice(peer, DISCONNECTED)
        equal(end.stream_home_id, begin.stream_home_id)
    ends = rig.server.calls("NotifyStreamStatus", lambda r: r.event == DISCONNECTED)
    equal(len({c.request.session_id for c in ends}), len(ends))


def log_3_no_secret_stands_in_the_log(rig):
    text = rig.gateway.log.read_text(errors="replace")
    assert text, "the gateway logged nothing"
    assert SECRET not in text, "a secret of a request stands in the log"
    assert "gw-session-" not in text, "a session id stands in the log"


def tests(part):
    """The tests whose name contains `part`, in the order of this file."""
    rule = re.compile(
        "(cmd|sub|guard|hb|inv|reg|permit|lsn|admit|mgmt|mgmt_auth|w|stop|log)_[0-9]+_")
    return [f for name, f in globals().items()
            if rule.match(name) and part in name and (tls.ON or not name.endswith("_over_tls"))]


def run(test, rig):
    """Runs one test and says whether it passed."""
    begin = time.monotonic()
    try:
        test(rig)
        failure = None
    except Exception:
        failure = traceback.format_exc()
    for each in rig.agents:
        each.close()
    word = "FAIL" if failure else "ok"
    print(f"{word:4} {test.__name__} ({time.monotonic() - begin:.2f} s)", flush=True)
    if failure:
        print(failure, flush=True)
    return failure is None


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    # Ends through the clean-up below, as Ctrl-C does; `run` sends it to a suite that hangs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    name = f"{NAME}-tls" if tls.ON else NAME
    if tls.ON:
        tls.make_install()
    server = Server()
    process = Gateway(server.port, name)
    operator = Operator(process.management_address)
    try:
        chosen = tests(part)
        passed = sum(
            run(test, Rig(test.__name__, server, process, operator)) for test in chosen)
    finally:
        operator.close()
        process.kill()
        server.stop()
    print(f"contract {name}: {passed} passed, {len(chosen) - passed} failed")
    sys.exit(passed != len(chosen) or not chosen)


if __name__ == "__main__":
    main()
