"""What people have sent an agent is the end of its next prompt."""

from typing import cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import BundlePromptActivity
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import BundlePrompt, QueuedMessage
from agent_runs.contracts.request import RunConfig
from agent_runs.contracts.start import Binding, SealedMessage
from agent_runs.job.prompts import Prompts
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from tests.activities.fake_preparations import FakePreparations, KeptPrompt

RUN = RunKey(agent_id="ada", company_id="co-1", run_id="run")
KEY = SealingKey.generate()


def message(number: int, text: str, run: RunKey = RUN, key: SealingKey = KEY) -> QueuedMessage:
    content = SealedMessage(binding=Binding.of_message(run, f"m{number}"), text=text)
    return QueuedMessage(id=f"m{number}", by="bob", sealed=Sealer(key.public).seal(content))


async def prompt(*messages: QueuedMessage, resuming: bool, continues: bool) -> str:
    kept = KeptPrompt()
    step = BundlePromptActivity(cast("Cluster", kept), Prompts(FakePreparations(), Opener([KEY])))
    config = RunConfig.model_validate({"model": "fake/model"})
    attempt = AttemptKey(run=RUN, attempt=2)
    input = BundlePrompt(attempt=attempt, config=config, resuming=resuming, messages=messages, continues=continues)
    bundle = await ActivityEnvironment().run(step.bundle_prompt, input)
    assert bundle.size == len(kept.text.encode())
    return kept.text


async def test_a_session_that_goes_on_gets_the_messages_alone_in_their_order() -> None:
    sent = message(1, "The branch is heron."), message(2, "Push it.")
    assert await prompt(*sent, resuming=True, continues=True) == "The branch is heron.\n\nPush it."


@pytest.mark.parametrize(("resuming", "continues"), [(False, True), (True, False), (False, False)])
async def test_a_fresh_session_or_unfinished_work_gets_all_else_too(resuming: bool, continues: bool) -> None:
    without = await prompt(resuming=resuming, continues=continues)
    text = await prompt(message(1, "Push it."), resuming=resuming, continues=continues)
    assert without
    assert text == f"{without}\n\nPush it."


@pytest.mark.parametrize(
    "wrong",
    [
        message(2, "x", key=SealingKey.generate()),
        message(2, "x", RunKey(agent_id="ada", company_id="co-1", run_id="another")),
        QueuedMessage(id="m2", by="bob", sealed="nothing"),
    ],
    ids=["another key", "another run", "no seal"],
)
async def test_a_message_that_cannot_be_read_ends_no_run(wrong: QueuedMessage) -> None:
    text = await prompt(message(1, "Push it."), wrong, resuming=True, continues=True)
    assert text.startswith("Push it.\n\n(A message of bob cannot be read")
