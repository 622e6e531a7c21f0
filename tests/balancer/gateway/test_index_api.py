"""``balancer/gateway/index_api.py``: a gateway's index answers others as it answers its own router."""

import json
from typing import Any

from tests.support.engines import MODEL, config, fleet
from tests.support.gateways import get, post, split
from tests.support.waiting import run


def test_a_gateways_index_can_be_asked_and_read() -> None:
    async def check() -> None:
        async with fleet(config(), config()) as crew:
            prompt = list(range(100, 165))
            name, _, _ = await crew.complete(prompt)
            await crew.settle()
            blocks = len(prompt) // 16

            async def ask(body: Any) -> tuple[str, Any]:
                answer = split(await crew.front.exchange(post("/index/query", json.dumps(body).encode())))
                return answer[0], json.loads(answer[2])

            status, answer = await ask({"token_ids": prompt})
            assert status == "HTTP/1.1 200 OK"
            assert (answer["model"], answer["prompt_tokens"]) == (MODEL, 65)
            tokens = {row["replica"]: row["matched_tokens"]["GPU"] for row in answer["replicas"]}
            assert tokens == {each: 16 * blocks if each == name else 0 for each in tokens}
            assert {row["knowledge"] for row in answer["replicas"]} == {"exact"}
            assert crew.router.fleet.open_leases == 0

            dumped = split(await crew.front.exchange(get("/index/dump")))[2].splitlines()
            assert json.loads(dumped[-1]) == {"end": True, "keys": blocks}
            keys = json.loads(dumped[1])["keys"]
            status, answer = await ask({"model": MODEL, "block_hashes": keys})
            assert max(row["matched_tokens"]["GPU"] for row in answer["replicas"]) == 16 * blocks

            rows = json.loads(split(await crew.front.exchange(get("/index/replicas")))[2])["replicas"]
            assert sorted(row["tiers"]["GPU"]["blocks"] for row in rows) == [0, blocks]
            assert all(row["events"]["is_complete"] for row in rows)

    run(check())


def test_what_cannot_be_answered_is_refused_in_the_shape_of_openai() -> None:
    async def check() -> None:
        async with fleet(config()) as crew:
            for body, line, param in (
                (b'{"model":"nope","token_ids":[1]}', "HTTP/1.1 404 Not Found", "model"),
                (b'{"token_ids":"text"}', "HTTP/1.1 400 Bad Request", "token_ids"),
                (b'{"token_ids":[1],"lora":"a"}', "HTTP/1.1 400 Bad Request", "lora"),
            ):
                status, _, answer = split(await crew.front.exchange(post("/index/query", body)))
                assert (status, json.loads(answer)["error"]["param"]) == (line, param)

    run(check())
