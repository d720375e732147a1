"""`LLM`: the engine for programs without asyncio. One engine thread; any number of threads may call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, cast
from weakref import finalize

from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError, RequestError
from headrace.base.request import SamplingParams
from headrace.base.tasks import BeamSearch, pooling_of
from headrace.engine.build import OpenedModel, Phases, open_and_build
from headrace.engine.chat.prompt import ChatOptions, Messages
from headrace.engine.client import CoreClient, LocalClient
from headrace.engine.frontend import Frontend
from headrace.engine.intake import Ask, Prompt
from headrace.engine.offline.batch import Batch, Outputs, raised
from headrace.engine.offline.progress import make_progress
from headrace.engine.outputs import EmbeddingResult, EngineStats, GenerationResult, RequestOutput
from headrace.engine.resolve import Resolved
from headrace.host.text.chat import ChatTemplate
from headrace.host.text.parts.splitter import SplitPlan
from headrace.host.text.tokenizer import Tokenizer
from headrace.host.text.tools.definitions import read_use


class LLM:
    """A model in this process.

    Args:
        model: catalogue name, .gguf file, checkpoint directory or hub id; or a whole `EngineConfig`.
        overrides: settings by name (`max_num_seqs=8`) or by section (`kv={"num_blocks": 64}`).

    Raises:
        ConfigError: unknown or impossible settings.
        CheckpointError: the model cannot be used.
        NotFoundError: there is no such model.
    """

    def __init__(self, model: str | EngineConfig = "smollm2:135m", **overrides: Any) -> None:
        phases = Phases()
        config = model if isinstance(model, EngineConfig) else EngineConfig()
        config = with_overrides(config, overrides)
        if isinstance(model, str):
            config = replace(config, model=replace(config.model, model=model))
        opened, core = open_and_build(config, phases)
        self._attach(opened, LocalClient(core, phases.seconds))

    @classmethod
    def over(cls, opened: OpenedModel, client: CoreClient) -> Self:
        """An `LLM` over an engine that is made already, but not started."""
        made = cls.__new__(cls)
        made._attach(opened, client)
        return made

    def _attach(self, opened: OpenedModel, client: CoreClient) -> None:
        self._opened = opened
        self.phases = client.phases
        """Seconds of each phase of the start."""
        self._frontend = Frontend(opened, client)
        finalize(self, self._frontend.close).atexit = False  # the client sees to the end of the program

    # ---- what it is ----

    @property
    def resolved(self) -> Resolved:
        """Concrete settings with reasons."""
        return self._opened.resolved

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer."""
        return self._opened.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template."""
        return self._opened.text.chat_template

    @property
    def defaults(self) -> SamplingParams:
        """Sampling parameters that apply when a call brings none."""
        return self._opened.defaults

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        return self._frontend.stats()

    # ---- calls ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[GenerationResult]:
        """Complete prompts together; results in the order of the prompts.

        Args:
            prompts: a text, a list of token ids, or a list of these.
            params: for all prompts, or one per prompt; None: `defaults`.
            progress: draw a bar on standard error, when that is a terminal.

        Raises:
            RequestError: a request is invalid; none of the call's requests goes on then.
            HeadraceError: a request failed.
        """
        return self._run(_as_list(prompts), params, progress)

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        progress: bool = True,
        **template_kwargs: Any,
    ) -> list[GenerationResult]:
        """Answer one conversation or several; errors as `generate`.

        Args:
            conversations: messages, or a list of such lists.
            params: for all, or one per conversation; None: `defaults`.
            tools: what the model may call, in OpenAI's spelling; calls are in `Completion.message`.
            tool_choice: `none`, `auto`, `required`, or one tool, in OpenAI's spelling.
            progress: draw a bar on standard error, when that is a terminal.
            **template_kwargs: variables of the template (`enable_thinking` ...).
        """
        many: Any = [conversations] if isinstance(conversations[0], Mapping) else conversations
        options = ChatOptions(template_kwargs=template_kwargs, tools=read_use(tools, tool_choice))
        each = self._params(params, len(many))
        asked = [options.of(own) for own in each]
        prompts = [self._frontend.intake.chat(*pair) for pair in zip(many, asked, strict=True)]
        held = [prompt.constrained(own) for prompt, own in zip(prompts, each, strict=True)]
        return self._run([p.ids for p in prompts], held, progress, [p.plan for p in prompts])

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beams: BeamSearch,
        *,
        max_tokens: int | None = 16,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        progress: bool = True,
    ) -> list[GenerationResult]:
        """The most likely answers to each prompt, best first: `beams.width` choices; see docs/beam.md.

        Args:
            prompts: as in `generate`.
            beams: width, length penalty, early stopping.
            max_tokens: most tokens of an answer; None: up to the context limit.
            ignore_eos: the model's end tokens end nothing.
            stop_token_ids: more tokens that end an answer.
            progress: as in `generate`.

        Raises:
            RequestError: a request is invalid.
            HeadraceError: a request failed.
        """
        params = SamplingParams(
            temperature=0.0,
            n=beams.width,
            beams=beams,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop_token_ids),
        )
        return self._run(_as_list(prompts), params, progress)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str = "last",
        normalize: bool = True,
        progress: bool = True,
    ) -> list[EmbeddingResult]:
        """Vectors of prompts, in their order; see docs/embeddings.md.

        Args:
            prompts: as in `generate`.
            pooling: `last` (the hidden state of the last token) or `mean` (over all tokens).
            normalize: scale each vector to length 1.
            progress: as in `generate`.

        Raises:
            RequestError: a prompt is invalid, or the pooling is unknown.
            HeadraceError: a request failed.
        """
        kind, many = pooling_of(pooling), _as_list(prompts)
        asks = [Ask(prompt=p, params=SamplingParams(), task=kind) for p in many]
        batch = Batch(self._frontend, make_progress(len(many), shown=progress))
        return [gathered.embedding(normalize=normalize) for gathered in batch.run(asks)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Outputs of one prompt as they come; leaving the loop early aborts the request."""
        queue: Outputs = SimpleQueue()
        ask = Ask(prompt=prompt, params=params or self.defaults)
        prepared = self._frontend.submit(ask, queue.put)
        try:
            while True:
                output = raised(queue.get())
                yield output
                if output.finished:
                    return
        finally:
            self._frontend.cancel(prepared)

    def close(self) -> None:
        """End the engine and free its memory; idempotent."""
        self._frontend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
        plans: Sequence[SplitPlan | None] | None = None,
    ) -> list[GenerationResult]:
        each = self._params(params, len(prompts))
        asked = zip(prompts, each, plans or [None] * len(prompts), strict=True)
        batch = Batch(self._frontend, make_progress(len(prompts), shown=progress))
        asks = [Ask(prompt=p, params=own, plan=plan) for p, own, plan in asked]
        return [gathered.result() for gathered in batch.run(asks)]

    def _params(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.defaults] * count
        if len(params) != count:
            raise RequestError(f"{count} prompts but {len(params)} sampling parameters", param="params")
        return params


def with_overrides(config: EngineConfig, overrides: Mapping[str, Any]) -> EngineConfig:
    """The tree with some settings replaced, by field name or by section.

    Raises:
        ConfigError: no such setting.
    """
    for name, value in overrides.items():
        sections = {f.name: getattr(config, f.name) for f in fields(config)}
        changes: dict[tuple[str, str], Any]
        if name in sections and isinstance(value, Mapping):
            changes = {(name, str(key)): item for key, item in cast("Mapping[str, Any]", value).items()}
        else:
            homes = [s for s, tree in sections.items() if name in {f.name for f in fields(tree)}]
            changes = {(homes[0] if homes else "", name): value}
        for (section, key), item in changes.items():
            if section not in sections or key not in {f.name for f in fields(sections[section])}:
                raise ConfigError(f"unknown setting {section + '.' if section else ''}{key}", param=key)
            sections[section] = replace(sections[section], **{key: item})
        config = EngineConfig(**sections)
    return config


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
