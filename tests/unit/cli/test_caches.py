"""What is measured is measured without the caches of earlier prompts, unless somebody wants them."""

from __future__ import annotations

from visavis.backends.native import EXTRA
from visavis.backends.options import EngineOptions, for_backend
from visavis.cli.caches import CACHES_OFF, switch_off


def test_both_caches_of_the_native_engine_are_switched_off_and_nothing_reaches_another_backend() -> None:
    options, said = switch_off(EngineOptions(), ("native", "hf"))
    assert for_backend(options, "native", {"native", "hf"}).extra == {
        "enable_prefix_caching": False,
        "encoder_cache_bytes": 0,
    }
    assert for_backend(options, "hf", {"native", "hf"}).extra == {}
    assert said == ("native enable_prefix_caching=false", "native encoder_cache_bytes=0")


def test_what_the_user_said_about_a_cache_holds() -> None:
    for key in ("native.enable_prefix_caching", "enable_prefix_caching"):
        options, said = switch_off(EngineOptions(extra={key: True}), ("native",))
        assert for_backend(options, "native", {"native"}).extra["enable_prefix_caching"] is True
        assert said == ("native encoder_cache_bytes=0",)


def test_the_native_engine_knows_the_options_that_switch_its_caches_off() -> None:
    assert set(CACHES_OFF["native"]) <= set(EXTRA)
