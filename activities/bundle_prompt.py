"""Puts the prompt into a Secret; only its place and its metrics enter the history."""

import hashlib
from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.messages import BundlePrompt, PromptBundle
from agent_runs.job.prompts import Prompts
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.client import Cluster


@dataclass(frozen=True)
class BundlePromptActivity:
    """Stores what `Prompts` composes."""

    cluster: Cluster
    prompts: Prompts

    @activity.defn
    async def bundle_prompt(self, input: BundlePrompt) -> PromptBundle:
        """Composes the prompt and stores it in a Secret. May be repeated.

        Raises:
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            PromptTooLarge: the prompt does not fit into a Secret.
            JobCreateFailed: Kubernetes refused the Secret.
            PodIntrospectionFailed: the worker's pod cannot be read, or lacks a container.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        config = input.config
        prompt = await self.prompts.compose(
            input.attempt.run,
            config,
            resuming=input.resuming,
            messages=input.messages,
            continues=input.continues,
            interruption=input.interruption,
        )
        namespace = config.namespace or self.cluster.namespace
        text = prompt.text.encode()
        await self.cluster.put_secret(prompt_secret(input.attempt, namespace, text))
        return PromptBundle(
            namespace=namespace,
            secret_name=input.attempt.prompt_secret_name,
            sha256=hashlib.sha256(text).hexdigest(),
            size=len(text),
            metrics=prompt.metrics,
            skill_folders=prompt.skill_folders,
            skill_names=prompt.skill_names,
        )
