"""Images in prompts: their positions, what the scheduler makes of them, and their preparation."""

import asyncio
import base64
import io
import zlib
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import Internal, InvalidRequest, Overloaded
from pagantic_common.domain.images import MAX_PIXELS, image_of
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from services.inference.adapters.prompts.image_decoding import MAX_RATIO, MAX_SIDE_PIXELS, decode_image
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.app.preparation import MAX_WAITING_IMAGES, ImagePreparation
from services.inference.app.prepared_request import PromptTokenizer
from services.inference.core.decoding.images import (
    IMAGE_TOKEN,
    DecodedImage,
    EncodedImage,
    ImagePiece,
    embeddings_at,
    lay_out,
    run_end,
)
from services.inference.core.generation import ChatPrompt
from services.inference.core.scheduling.branches import Prompted
from services.inference.core.scheduling.cache_owners import CacheOwners
from tests.support.examples import examples
from tests.support.sample_images import GIF, PNG, sample_image
from tests.unit.inference.batching_model import Bench

FIRST_POSITION_OF_IMAGE_0 = 1000
PROMPTS = st.lists(st.text("abc", min_size=1, max_size=12) | st.integers(0, 2), max_size=4)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


class SeeingEngine(ScriptedEngine):
    """A scripted engine that reads the first number of each row of embeddings as a token."""

    def decode(self, slices):
        assert all(part.logit_rows == 0 for part in slices if part.embeddings is not None)
        assert all(IMAGE_TOKEN not in part.tokens for part in slices if part.embeddings is None)
        return super().decode([part if part.embeddings is None else seen(part) for part in slices])


def seen(part):
    assert set(part.tokens) == {IMAGE_TOKEN}
    assert len(part.tokens) == len(part.embeddings)
    return replace(part, tokens=[int(row[0]) for row in part.embeddings])


def picture(number, positions=5):
    """An image between two tokens, as some models have them."""
    first = FIRST_POSITION_OF_IMAGE_0 + 100 * number
    embeddings = np.arange(first, first + positions, dtype=np.float32)[:, np.newaxis]
    pieces = (
        ImagePiece(tokens=(120,)),
        ImagePiece(positions=positions, embeddings=embeddings),
        ImagePiece(tokens=(121,)),
    )
    return EncodedImage(bytes([number]), pieces)


def prompt_of(parts):
    """Return the tokens and the image spans of texts and numbers of images."""
    tokens, spans = [], []
    for part in [*parts, "?"]:
        if isinstance(part, str):
            tokens += part.encode()
        else:
            added, found = lay_out(picture(part), len(tokens))
            tokens += added
            spans += found
    return tokens, tuple(spans)


def submit(bench, parts, **more):
    tokens, spans = prompt_of(parts)
    return bench.submit(tokens, images=spans, **more)


def bench_of(**options):
    capacity, sequences = options.get("capacity", 400), options.get("sequences", 16)
    engine = SeeingEngine(logits_of=random_logits, kv_capacity_tokens=capacity, max_sequences=sequences)
    return Bench(engine=engine, **options)


@given(PROMPTS, st.data())
def test_a_run_is_of_one_image_or_of_tokens_alone_and_runs_cover_the_prompt(parts, data):
    tokens, spans = prompt_of(parts)
    start = data.draw(st.integers(0, len(tokens) - 1))
    while start < len(tokens):
        end = run_end(spans, start, len(tokens))
        assert end > start
        rows = embeddings_at(spans, start, end)
        assert [token == IMAGE_TOKEN for token in tokens[start:end]] == [rows is not None] * (end - start)
        if rows is not None:
            assert len(rows) == end - start
        start = end


@settings(max_examples=examples(100), deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "step_tokens": st.integers(2, 20),
            "max_running": st.integers(1, 4),
            "capacity": st.integers(90, 200),
            "idle": st.integers(0, 60),
            "parked": st.integers(0, 150),
            "memo": st.integers(0, 8),
        }
    ),
    st.lists(st.tuples(PROMPTS, st.sampled_from("ab"), st.integers(0, 5)), min_size=1, max_size=6),
)
def test_what_a_request_says_depends_on_its_images_and_not_on_its_neighbours(options, requests):
    bench = bench_of(**options)
    numbers = []
    for parts, tenant, seed in requests:
        numbers.append(submit(bench, parts, tenant=tenant, seeds=(seed,), max_tokens=4))
        bench.step()
    bench.run()
    for number, (parts, _, seed) in zip(numbers, requests, strict=True):
        alone = bench_of()
        own = submit(alone, parts, seeds=(seed,), max_tokens=4)
        assert bench.text(number) == alone.run().text(own)


def cached(bench, number):
    (prompted,) = bench.of(Prompted, number)
    return prompted.cached_prompt_tokens


def test_equal_images_of_a_tenant_share_their_cells_and_others_do_not():
    bench = bench_of()
    counts = []
    for number, tenant in ((0, "a"), (0, "a"), (1, "a"), (0, "b"), (0, "b")):
        counts.append(submit(bench, ["look: ", number], tenant=tenant, max_tokens=1))
        bench.run()
    all_but_last = len(prompt_of(["look: ", 0])[0]) - 1
    before_image = len("look: ") + 1
    assert [cached(bench, number) for number in counts] == [0, all_but_last, before_image, 0, all_but_last]


def test_a_forgotten_image_gets_a_new_number_and_no_tenant_pays_for_it():
    owners = CacheOwners(capacity=2)
    tenant = owners.number_of("a")
    first = owners.numbers_of_images(tenant, [b"0", b"1"])
    assert owners.numbers_of_images(tenant, [b"0", b"1"]) == first
    assert not {*owners.numbers_of_images(tenant, [b"2", b"3"]), *owners.numbers_of_images(tenant, [b"0"])} & {*first}
    assert owners.number_of("a") == tenant


def tokenizer(template=TEMPLATE):
    engine = ScriptedEngine()
    return PromptTokenizer(engine, JinjaChatTemplate(template, bos_token="", eos_token=""))


def user(content, *offsets):
    return Message(Role.USER, content, images=tuple(image_of("image/png", b"", offset) for offset in offsets))


def test_an_image_stands_in_the_prompt_where_it_stands_in_the_message():
    prompt = ChatPrompt((user("ab", 0, 1), Message(Role.ASSISTANT, "c"), user("d", 1)))
    made = tokenizer().tokenize(prompt, images=[picture(0, 2), picture(1, 3), picture(2, 1)])
    text = bytes(45 if token == IMAGE_TOKEN else token for token in made.tokens).decode()
    assert text == "<user>x--yax---yb<assistant>c<user>dx-y<assistant>"
    assert [(span.start, len(span.embeddings)) for span in made.images] == [(7, 2), (12, 3), (37, 1)]
    assert made.text_tokens == [token for token in made.tokens if token >= 0]


def test_a_text_with_the_mark_of_images_is_a_text():
    made = tokenizer().tokenize(ChatPrompt((user("\ue003", 1),)), images=[picture(0, 2)])
    assert bytes(45 if token < 0 else token for token in made.tokens).decode() == "<user>\ue003x--y<assistant>"


def test_a_template_without_tools_keeps_images_beside_an_enforced_call():
    tool = ToolDefinition("clock", "Tells the time.", '{"type":"object"}')
    prompt = ChatPrompt((user("ab", 1),), (tool,), ToolChoice(ToolChoiceMode.REQUIRED))
    made = tokenizer().tokenize(prompt, images=[picture(0, 2)])
    assert len(made.images) == 1


@pytest.mark.parametrize("template", ["{{ messages[0].content }}{{ messages[0].content }}", "hello"])
def test_a_template_that_does_not_show_each_image_once_is_refused(template):
    with pytest.raises(InvalidRequest, match=r"template shows [02] of 1 images"):
        tokenizer(template).tokenize(ChatPrompt((user("ab", 1),)), images=[picture(0)])


class Encoder:
    """Takes the number of its calls for what it saw."""

    def __init__(self):
        self.calls = []
        self.is_closed = False

    def encode(self, image, *, only_counts=False):
        if image.rgb == b"bad":
            raise Internal("the encoder failed")
        self.calls.append((image.rgb, only_counts))
        if only_counts:
            return (ImagePiece(positions=1),)
        return (ImagePiece(positions=1, embeddings=np.full((1, 2), len(self.calls), dtype=np.float32)),)

    def close(self):
        self.is_closed = True


async def decode_name(image):
    name = base64.b64decode(image.data)
    if name == b"damaged":
        raise InvalidRequest("damaged")
    return DecodedImage(1, 1, name)


def preparation(encoder, decode=decode_name):
    return ImagePreparation(encoder, decode, monotonic_s=lambda: 0.0)


def named(*names):
    return [image_of("image/png", name) for name in names]


async def test_an_image_is_encoded_once_for_a_tenant_also_when_two_ask_at_once():
    encoder = Encoder()
    prepared = preparation(encoder)
    one, two = await asyncio.gather(prepared.encode(named(b"a")), prepared.encode(named(b"a", b"b")))
    assert one[0] is two[0]
    assert two[0].digest != two[1].digest
    with work_scope(principal=work_of("other")):
        await prepared.encode(named(b"a"))
    assert [name for name, _ in encoder.calls] == [b"a", b"b", b"a"]
    await prepared.close()
    assert encoder.is_closed


async def test_a_count_needs_no_embeddings():
    encoder = Encoder()
    prepared = preparation(encoder)
    (counted,) = await prepared.encode(named(b"a"), only_counts=True)
    assert counted.pieces[0].embeddings is None
    assert encoder.calls == [(b"a", True)]
    await prepared.close()


async def test_an_image_that_fails_does_not_fail_the_next_one():
    prepared = preparation(Encoder())
    with pytest.raises(InvalidRequest, match="damaged"):
        await prepared.encode(named(b"a", b"damaged"))
    with pytest.raises(Internal, match="the encoder failed"):
        await prepared.encode(named(b"bad"))
    assert await prepared.encode(named(b"b"))
    await prepared.close()


async def test_more_images_than_may_wait_are_refused():
    go_on = asyncio.Event()

    async def decode(image):
        await go_on.wait()
        return await decode_name(image)

    prepared = preparation(Encoder(), decode)
    waiting = [asyncio.create_task(prepared.encode(named(bytes([number])))) for number in range(MAX_WAITING_IMAGES)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=f"{MAX_WAITING_IMAGES} images wait"):
        await prepared.encode(named(b"one more"))
    go_on.set()
    await asyncio.gather(*waiting)
    assert await prepared.encode(named(b"one more"))
    await prepared.close()


def decoded(data, media_type="image/png"):
    width, height, pixels = decode_image(media_type, base64.b64encode(data).decode())
    rgb = np.frombuffer(base64.b64decode(pixels), dtype=np.uint8)
    return rgb.reshape(height, width, 3)


def file_with(image, kind="PNG", **options):
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


@pytest.mark.parametrize(("name", "media_type"), [(PNG, "image/png"), (GIF, "image/gif")])
def test_a_file_is_pixels_as_the_library_reads_them(name, media_type):
    pixels = decoded(sample_image(name), media_type)
    with PIL.Image.open(io.BytesIO(sample_image(name))) as file:
        assert pixels.shape == (file.height, file.width, 3)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_read(kind):
    red = PIL.Image.new("RGB", (40, 20), "red")
    pixels = decoded(file_with(red, kind), f"image/{kind.lower()}")
    assert pixels.shape == (20, 40, 3)
    assert np.abs(pixels.astype(int) - [255, 0, 0]).max() < 10


def test_what_is_transparent_is_white():
    clear = PIL.Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert (decoded(file_with(clear)) == 255).all()


def test_an_image_is_turned_upright():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    assert decoded(file_with(PIL.Image.new("RGB", (30, 20)), "JPEG", exif=exif), "image/jpeg").shape == (30, 20, 3)


def test_a_large_image_is_made_smaller():
    side = MAX_SIDE_PIXELS
    assert decoded(file_with(PIL.Image.new("L", (3 * side, side)))).shape == (side // 3, side, 3)


def bomb(width, height):
    """A PNG of few bytes whose header tells of many pixels."""
    data = bytearray(file_with(PIL.Image.new("1", (8, 8))))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header = bytes(data[12:29])
    data[29:33] = zlib.crc32(header).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (bomb(60_000, 60_000), f"60000 x 60000 pixels, at most {MAX_PIXELS} are taken"),
        (bomb(8, 8 * MAX_RATIO + 1), f"one side may be at most {MAX_RATIO} times"),
        (bomb(4000, 4000), "is no image/png that can be read"),
        (sample_image(GIF), "is no image/png that can be read"),
        (sample_image(PNG)[:100], "is no image/png that can be read"),
        (b"", "is no image/png that can be read"),
    ],
)
def test_a_file_that_is_damaged_or_too_large_is_refused(data, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        decoded(data)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([PNG, GIF]), st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_no_damage_gives_anything_but_pixels_or_a_refusal(name, place, damage):
    data = bytearray(sample_image(name))
    place %= len(data)
    data[place : place + len(damage)] = damage
    try:
        pixels = decoded(bytes(data), "image/png" if name == PNG else "image/gif")
    except InvalidRequest:
        return
    assert max(pixels.shape) <= MAX_SIDE_PIXELS
