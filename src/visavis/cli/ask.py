"""`visavis ask "question"`: one question, the answer as it is written, what it took; boxes drawn if asked."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from visavis.cli.answer_document import answer_document
from visavis.cli.fitting import saying_what_fits
from visavis.cli.inputs import add_request_options, named_by_flags, prompt_of, raw_cases, refuse_overwriting
from visavis.cli.model_file import interpreters_of, keep_box_format, use_model_file
from visavis.cli.options import (
    add_engine_options,
    add_model_option,
    add_pixel_options,
    add_sampling_options,
    announce_model,
    check_sampling,
    engine_options,
    pixel_limits,
    sampling_params,
)
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from visavis.backends.base import LoadInfo, ModelInterface, Progress
    from visavis.chat.types import Conversation, Image
    from visavis.completion import Completion
    from visavis.prompt import Prompt

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "ask",
        help="ask one question about an image, a video or text",
        description="""\
Asks one question and writes the answer as it comes; how long each part took goes to stderr.

  visavis ask "where is the search button?" -m MODEL --image screen.png --draw found.png""",
    )
    add_request_options(parser)
    add_model_option(parser)
    parser.add_argument("--backend", metavar="NAME", help="engine; `visavis backends` lists them (default: native)")
    parser.add_argument("--draw", metavar="OUT.png", help="paint the answer's boxes and points on the upright image")
    parser.add_argument(
        "--draw-image", default="1", metavar="N", help="which of several images the boxes belong to, from 1"
    )
    add_pixel_options(parser)
    add_sampling_options(parser, single=True)
    add_engine_options(parser)
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    started = time.perf_counter()
    output = Output(args)
    use_model_file(args)
    if args.backend is None:
        args.backend = "native"
    cases = raw_cases(args)
    if not cases:
        raise OptionError('the question is missing: visavis ask "what is this?" --image screen.png')
    if len(cases) > 1:
        raise OptionError(
            f"{args.messages} holds {len(cases)} conversations, ask answers one; "
            f"visavis compare --backends {args.backend} --messages {args.messages} answers all"
        )
    sampling, options = sampling_params(args), engine_options(args, (args.backend,), warmup=False)
    pixel_limits(args)
    if args.draw is not None:
        from visavis.grounding.output import check_image_path

        try:
            check_image_path(args.draw)
        except OptionError as error:
            raise OptionError(f"--draw {error}") from None
        refuse_overwriting("--draw", args.draw, cases)
    announce_model(args, output)

    from visavis.backends.registry import new

    with output.only_ours():
        model = new(args.backend, python=interpreters_of(args, (args.backend,)).get(args.backend))
        model.use_generation_config = args.generation_config
        with named_by_flags(cases[0]), closing(model), _progress(output, args.backend) as progress:
            # What the input is gets decided before the engine is loaded, so that its faults show at once.
            family = model.open(args.model, options)
            keep_box_format(args, family)
            prompt, conversation = prompt_of(family, cases[0], args)
            check_sampling(args, sampling, options, family, prompt)
            image = _image_to_draw_on(args, conversation, prompt)
            loading = time.perf_counter()
            with saying_what_fits(
                args.model,
                args.backend,
                options,
                images=[m.original_size for m in prompt.media if m.kind == "image"],
                text_tokens=max(1, len(prompt) - prompt.num_image_tokens),
                max_tokens=sampling.max_tokens,
                concurrency=1,
            ):
                model.load(args.model, options, progress)
            loaded = time.perf_counter()
            completion = _answer(model, prompt, sampling, output, progress)
            answered, info = time.perf_counter(), model.info
    if completion.error is not None:
        raise RequestError(f"{args.backend} failed: {completion.error}")
    assert info is not None  # load() sets it
    undrawn = _draw(args, image, completion, output) if image is not None else None
    if output.json:
        phases = {
            "input_s": loading - started,  # reading, decoding and preparing it, tokenizer included
            "load_s": loaded - loading,
            "answer_s": answered - loaded,
            "command_s": time.perf_counter() - started,
        }
        drawn = args.draw if undrawn is None else None
        output.document(answer_document(completion, info, prompt, family.tokenizer, phases, drawn=drawn))
    else:
        _print_after(output, completion, info, loaded - loading, family.tokenizer)
    if undrawn is not None:
        raise undrawn
    return 0


def _draw(args: Namespace, image: tuple[int, Image], completion: Completion, output: Output) -> OptionError | None:
    """Paints the answer's places. What keeps the file from being written comes back: the answer is shown first."""
    from visavis.grounding import draw

    found = completion.boxes(image[0])
    try:
        draw(image[1].pixels, found, args.draw)
    except OptionError as error:
        return error
    marks = f"{len(found)} place{'s' if len(found) > 1 else ''} drawn on {args.draw}"
    output.say(marks if len(found) else f"no box in the answer; {args.draw} is unmarked")
    return None


def _image_to_draw_on(args: Namespace, conversation: Conversation, prompt: Prompt) -> tuple[int, Image] | None:
    """(number, image) for --draw. Raises OptionError where nothing could be drawn, before the engine starts."""
    from visavis.chat.types import Image as ImageType

    if args.draw is None:
        return None
    images = [m for m in conversation.media if isinstance(m, ImageType)]
    if not images:
        raise OptionError("--draw needs an image: add --image FILE")
    if prompt.box_format == "none":
        raise OptionError(f"--draw: {prompt.model} declares no box format, so its answers hold no boxes to draw")
    if not args.draw_image.isdigit() or not 1 <= int(args.draw_image) <= len(images):
        raise OptionError(
            f"--draw-image {args.draw_image}: the question has {len(images)} images; give 1 to {len(images)}"
        )
    number = int(args.draw_image) - 1
    return number, images[number]


def _answer(model: ModelInterface, prompt: Prompt, sampling: Any, output: Output, progress: Progress) -> Completion:
    completion: Completion | None = None
    with closing(model.stream_batch([prompt], sampling)) as deltas:
        for delta in deltas:
            if delta.text and not output.json:
                progress("answer", 0.0)  # ends the line that shows loading
                output.piece(delta.text)
            completion = delta.completion or completion
    if completion is None:
        raise RequestError(f"{model.name} gave no answer")
    if not output.json:
        nothing = completion.error is not None and not completion.text
        if not nothing and not completion.text.endswith("\n"):
            output.piece("\n")
        for number, other in enumerate(completion.alternatives, start=2):
            output.piece(f"--- answer {number}\n{other.text}\n")
    return completion


def _print_after(output: Output, completion: Completion, info: LoadInfo, load_s: float, tokenizer: Any) -> None:
    """Boxes, log-probabilities that were asked for, what became moot, and the times with the engine's marks: on
    stderr."""
    from visavis.report.units import duration, rate

    if completion.media_sizes and completion.box_format != "none":
        found = completion.boxes()
        for item in found.items:
            place = item.box if item.box is not None else item.center
            flags = "".join(f" ({flag})" for flag in ("clipped", "swapped") if getattr(item, flag))
            kind = "box" if item.box is not None else "point"
            output.say(f"{kind} {item.label or '–'}: {', '.join(f'{v:.0f}' for v in place)} pixels{flags}")
        for reject in found.rejects:
            output.say(f"not read as a box: {reject.text} ({reject.reason})")
    for name, entries in (("prompt", completion.prompt_logprobs), ("answer", completion.logprobs)):
        for entry in entries or ():
            if entry is not None:
                top = "  ".join(f"{tokenizer.decode([i])!r} {p:.3f}" for i, p in entry.top)
                output.say(f"{name} {tokenizer.decode([entry.token_id])!r} {entry.logprob:.3f}  best: {top}")
    for note in completion.sampling.notes:
        output.say(f"note: {note}")
    for number, answer in enumerate((completion, *completion.alternatives), start=1):
        if answer.valid is False and answer.error is None:
            which = f"answer {number}" if completion.alternatives else "the answer"
            cut = " yet: it was cut off; give more --max-tokens" if answer.finish_reason == "length" else ""
            output.say(f"note: {which} does not match what was asked for{cut}")
    times = completion.timings
    image_tokens = f", {completion.image_tokens} of images" if completion.image_tokens else ""
    parts = [
        f"{completion.backend} ({'; '.join(info.marks)})" if info.marks else completion.backend,
        f"{completion.prompt_tokens} prompt tokens{image_tokens}",
        f"{completion.completion_tokens} answer tokens ({completion.finish_reason})",
        f"load {duration(load_s)}",
        f"prepare {duration(times.prepare_s)}",
        f"first token {duration(times.first_token_s)}",
        f"per token {duration(times.per_token_s)} (median; {rate(times.decode_tokens_per_s)} tokens/s on average)",
    ]
    if completion.sampling.temperature > 0:
        parts.append(f"seed {completion.sampling.seed}")
    output.say(" · ".join(parts))


@contextmanager
def _progress(output: Output, backend: str) -> Iterator[Progress]:
    """One moving line on stderr while the engine loads; nothing where stderr is no terminal."""
    console = output.progress_console()
    if console is None:
        yield lambda phase, seconds: None
        return
    with console.status(f"{backend}: starting") as status:

        def show(phase: str, seconds: float) -> None:
            if phase in ("ready", "answer"):
                status.stop()
            else:
                status.update(f"{backend}: {phase}")

        yield show
