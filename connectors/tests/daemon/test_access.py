"""The token, where a user's own one is kept, and how it is proven instead of sent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from harness.daemon_stubs import Answer, Asking, daemon_of, whole

from onefold.core import ConfigError
from onefold.daemon.access import proof
from onefold.daemon.access.token import make_own_token, own_token_file

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def _no_token_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def proven(
    ask: Asking, target: str, nonce: str, token: str = TOKEN, mac_of: str | None = None, at: str = proof.ANYWHERE
) -> tuple[Answer, str]:
    """The answer to a request with a proof of that target, or of another one; and its MAC."""
    mac = proof.of_request(token, nonce, "own", "GET", mac_of or target, at)
    return ask("GET", target, Authorization=f"{proof.SCHEME} {nonce} own {mac}"), mac


def nonce_of(ask: Asking) -> str:
    return ask("GET", "/pipelines", Authorization="").headers[proof.NONCE]


@pytest.mark.usefixtures("_no_token_yet")
def test_the_first_daemon_of_a_user_makes_a_token_that_nobody_else_can_read() -> None:
    tokens: set[str] = set()
    threads = [threading.Thread(target=lambda: tokens.add(make_own_token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    file = own_token_file()
    assert tokens == {file.read_text().strip()} and len(file.read_text()) == 65
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.usefixtures("_no_token_yet")
@pytest.mark.parametrize("exposed", ["the folder", "the file", "a link", "another owner"])
def test_a_token_that_others_may_have_read_or_made_is_refused(exposed: str, tmp_path: Path) -> None:
    make_own_token()
    file = own_token_file()
    match exposed:
        case "the folder":
            file.parent.chmod(0o770)
        case "the file":
            file.chmod(0o640)
        case "a link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case "another owner":
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(file, 65534, 65534)
    with pytest.raises(ConfigError) as refused:
        make_own_token()
    assert refused.value.code == "token-exposed"


def test_where_no_token_can_be_kept_the_start_says_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    with pytest.raises(ConfigError) as refused:
        make_own_token()
    assert (refused.value.code, "--token-file" in refused.value.message) == ("token-unkept", True)


def test_a_proof_is_good_once_for_its_own_target_and_the_answer_proves_itself(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        nonce = nonce_of(ask)
        answer, mac = proven(ask, "/pipelines/orders/epochs?limit=2", nonce)
        assert answer.headers[proof.ANSWER] == proof.of_answer(TOKEN, mac, answer.status, answer.body)
        assert proven(ask, "/pipelines/orders/epochs?limit=2", nonce)[0].status == 401, "it was used"
        for more in ({"mac_of": "/pipelines/none"}, {"token": "another-token-that-is-long"}):
            answer, _ = proven(ask, "/pipelines", nonce_of(ask), **more)
            assert (answer.status, answer.headers.get(proof.ANSWER)) == (401, None)


def test_a_proof_that_names_an_address_is_good_at_that_one_alone(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        port = int(ask.url.rpartition(":")[2])
        places = (("127.0.0.1", port), ("::ffff:127.0.0.1", port), ("127.0.0.1", port + 1), ("::1", port))
        found = [proven(ask, "/pipelines", nonce_of(ask), at=proof.place(each))[0].status for each in places]
        assert found == [200, 200, 401, 401]


def test_a_nonce_of_nobody_or_of_another_process_or_an_old_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        for nonce in ("", "a.b.c.d", proof.Nonces().new()):
            assert proven(ask, "/pipelines", nonce)[0].status == 401
        monkeypatch.setattr(proof.Nonces, "LIVES_S", 0.0)
        nonce = nonce_of(ask)
        assert proven(ask, "/pipelines", nonce)[0].status == 401
        monkeypatch.undo()
        assert proven(ask, "/pipelines", nonce_of(ask))[0].status == 200


def test_what_is_asked_with_a_proof_has_no_body(tmp_path: Path) -> None:
    with daemon_of(whole(tmp_path), token=TOKEN) as ask:
        for headers in ({"Content-Length": "2"}, {"Transfer-Encoding": "chunked"}):
            nonce = nonce_of(ask)
            mac = proof.of_request(TOKEN, nonce, "own", "GET", "/pipelines", proof.ANYWHERE)
            given = {"Authorization": f"{proof.SCHEME} {nonce} own {mac}", **headers}
            assert ask("GET", "/pipelines", **given).status == 401
