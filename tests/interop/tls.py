"""TLS on all three hops, when INTEROP_TLS is set: certificates made by openssl, and channels.

Without it every channel is plaintext.
"""

import os
import pathlib
import subprocess

import grpc

ON = os.environ.get("INTEROP_TLS") == "1"
DIRECTORY = pathlib.Path(__file__).resolve().parent / "out" / "certs"


def openssl(*arguments, stdin=""):
    """Runs openssl and returns what it prints."""
    done = subprocess.run(
        ["openssl", *arguments], input=stdin, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr}")
    return done.stdout


def path(name):
    """Where a file of the install is."""
    return str(DIRECTORY / name)


def read(name):
    """A file of the install."""
    return (DIRECTORY / name).read_bytes()


def issue(name, purposes, uri=""):
    """Makes `<name>.pem` and `<name>.key`, signed by the install's CA."""
    alternatives = "DNS:localhost,IP:127.0.0.1" + (f",URI:{uri}" if uri else "")
    extensions = DIRECTORY / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternatives}\nextendedKeyUsage={purposes}\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", path(f"{name}.key"), "-out", path(f"{name}.csr"))
    openssl("x509", "-req", "-in", path(f"{name}.csr"), "-CA", path("ca.pem"),
            "-CAkey", path("ca.key"), "-CAcreateserial", "-days", "2",
            "-extfile", str(extensions), "-out", path(f"{name}.pem"))


def make_install():
    """A CA with an RSA key, and the certificates of server, gateway and one agent."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=install", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", path("ca.key"), "-out", path("ca.pem"))
    fingerprint = openssl("x509", "-in", path("ca.pem"), "-noout", "-fingerprint", "-sha256")
    install = fingerprint.strip().split("=")[1].replace(":", "")
    issue("server", "serverAuth,clientAuth", f"yuzu://{install}/server")
    issue("gateway", "serverAuth,clientAuth")
    issue("agent", "clientAuth", f"yuzu://{install}/agent/a")


def gateway_config():
    """Keys of the gateway's file: of a listener, of the upstream, and whom to admit."""
    if not ON:
        return {"listener": "", "scheme": "http", "upstream": "", "management": ""}
    files = (f'cert_file = "{path("gateway.pem")}", key_file = "{path("gateway.key")}", '
             f'ca_file = "{path("ca.pem")}"')
    return {
        "listener": f"tls = {{ {files} }}",
        "scheme": "https",
        "upstream": f"tls = {{ {files} }}",
        "management": '[management]\npeer_auth_mode = "identity"',
    }


def channel(address, options, own=None):
    """A channel to a listener, presenting the certificate `own` when given."""
    if not ON:
        return grpc.insecure_channel(address, options=options)
    key, chain = (read(f"{own}.key"), read(f"{own}.pem")) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(read("ca.pem"), key, chain)
    return grpc.secure_channel(address, credentials, options=options)


def add_port(server):
    """A free port of a server that asks the gateway for its certificate."""
    if not ON:
        return server.add_insecure_port("127.0.0.1:0")
    own = [(read("server.key"), read("server.pem"))]
    credentials = grpc.ssl_server_credentials(own, read("ca.pem"), require_client_auth=True)
    return server.add_secure_port("127.0.0.1:0", credentials)
