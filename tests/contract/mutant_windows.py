"""Watchers of windows that are broken, each in one way."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from airflow.providers.watermark.change import HighWatermark, Window
from airflow.providers.watermark.delivery import AckModeProducer
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.position import Position, is_after
from airflow.providers.watermark.testing.doubles import STEP, ListSource, ListWindowTrigger
from tests.contract.declaring import fails

_COUNTER = itertools.count()


# --- Watchers that find other windows -----------------------------------------------------------------------


@fails(
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_intended_window_stays_as_it_was_under_another_limit",
    "an_intended_window_that_something_left_is_still_the_very_same",
)
class FindsAnotherWindowAfterACrash(ListWindowTrigger):
    """It overlaps the one that was delivered before."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        return await super().find_window(low, bound, None)


@fails(
    "an_intended_window_stays_as_it_was_under_another_limit",
    "ties_are_never_split",
)
class CountsNoMoreThanTheLimit(ListWindowTrigger):
    """``LIMIT n`` finds the bound, and is taken for the count, whatever ties there are."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        window = await super().find_window(low, bound, high)
        return window and replace(window, count=min(window.count, self.max_entries_per_event))


@fails(
    "a_backlog_is_split_by_the_limit_and_drains_in_one_sweep",
    "a_consumer_reads_all_windows_as_one",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_event_without_anything_follows_a_burst_once",
    "ties_are_never_split",
    "ties_behind_the_limit_are_left_for_the_next_window",
    "what_arrives_late_within_the_margin_falls_in_no_delivered_window",
    "what_lands_meanwhile_falls_in_a_later_window",
    "what_was_begun_long_ago_falls_in_no_delivered_window",
)
class CountsWhatIsVisibleNow(ListWindowTrigger):
    """Up to now, rather than up to its bound."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        window = await super().find_window(low, bound, high)
        source = ListSource.named(self.list_name)
        return window and replace(window, count=len(await source.stamps(low, source.clock)))


@fails(
    "what_arrives_late_within_the_margin_falls_in_no_delivered_window",
    "what_is_younger_than_late_arrival_waits",
    "what_was_begun_long_ago_falls_in_no_delivered_window",
)
class IgnoresTheBound(ListWindowTrigger):
    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        return await super().find_window(low, ListSource.named(self.list_name).clock, high)


@fails(
    "the_bound_keeps_the_margin_by_the_sources_clock",
    "what_is_younger_than_late_arrival_waits",
)
class LeavesNoMarginForWindows(ListWindowTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        bounds = await super().get_high_watermark()
        assert bounds.due is not None
        return replace(bounds, bound=bounds.due - STEP)


@fails(
    "a_backlog_is_split_by_the_limit_and_drains_in_one_sweep",
    "a_consumer_reads_all_windows_as_one",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_event_without_anything_follows_a_burst_once",
    "an_intended_window_stays_as_it_was_under_another_limit",
    "an_intended_window_that_something_left_is_still_the_very_same",
    "one_window_is_in_flight_at_a_time",
    "ties_are_never_split",
    "ties_behind_the_limit_are_left_for_the_next_window",
    "what_lands_meanwhile_falls_in_a_later_window",
    "what_was_begun_long_ago_falls_in_no_delivered_window",
)
class TakesTheBoundAfterItHasLooked(ListWindowTrigger):
    """What has landed meanwhile is settled by then, and was not counted."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        window = await super().find_window(low, bound, high)
        return window and replace(window, high=(await self.get_high_watermark()).bound)


@fails(
    "what_was_begun_long_ago_falls_in_no_delivered_window",
)
class ForgetsWhatIsLate(ListWindowTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        return replace(await super().get_high_watermark(), late={})


@fails(
    "ties_are_never_split",
)
class SplitsTies(ListWindowTrigger):
    """The bound is the last of the limit, exclusive: what is left of its ties is behind it."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        source = ListSource.named(self.list_name)
        stamps = await source.stamps(low, bound)
        if high is not None or len(stamps) <= self.max_entries_per_event:
            return await super().find_window(low, bound, high)
        last = stamps[self.max_entries_per_event - 1]
        cut = last - STEP / 2
        tied = last == stamps[self.max_entries_per_event] and is_after(cut, low)
        return Window(high=cut if tied else last, count=self.max_entries_per_event)


@fails(
    "a_backlog_is_split_by_the_limit_and_drains_in_one_sweep",
    "an_event_without_anything_follows_a_burst_once",
    "one_window_is_in_flight_at_a_time",
    "ties_are_never_split",
    "ties_behind_the_limit_are_left_for_the_next_window",
)
class IgnoresTheLimitOfWindows(ListWindowTrigger):
    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        limit, self.max_entries_per_event = self.max_entries_per_event, 10**9
        try:
            return await super().find_window(low, bound, high)
        finally:
            self.max_entries_per_event = limit


@fails(
    "a_backlog_is_split_by_the_limit_and_drains_in_one_sweep",
    "a_reset_starts_anew_in_a_higher_epoch",
    "a_rewind_delivers_again_in_a_higher_epoch",
    "a_rewind_wins_over_what_is_in_flight",
    "a_store_that_fails_later_is_asked_again",
    "a_watcher_stopped_while_it_saves_has_saved_or_not",
    "a_window_that_was_committed_does_not_come_again",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "an_event_without_anything_follows_a_burst_once",
    "an_intended_window_that_something_left_is_still_the_very_same",
    "an_operators_edit_is_adopted_in_a_higher_epoch",
    "an_operators_edit_replaces_an_intended_window",
    "from_now_only_what_comes_after_is_delivered",
    "payloads_are_strict_json_in_the_published_shape",
    "ties_are_never_split",
    "ties_behind_the_limit_are_left_for_the_next_window",
    "tuning_starts_nothing_anew",
    "what_is_dated_in_the_future_waits_and_hides_nothing",
    "what_is_overwritten_is_in_a_later_window_too",
    "what_is_put_is_in_one_window",
    "what_is_younger_than_late_arrival_waits",
    "without_anything_new_there_is_no_event_and_the_watermark_stays",
)
class DeliversEmptyWindows(ListWindowTrigger):
    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        window = await super().find_window(low, bound, high)
        return window or (Window(high=bound, count=0) if bound != low else None)


@fails(
    "an_error_is_told_once_with_the_watchers_identity",
    "an_error_stands_in_the_stored_status_until_it_is_mended",
    "what_was_begun_long_ago_falls_in_no_delivered_window",
)
class TakesAnErrorForNothingNew(ListWindowTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        now = ListSource.named(self.list_name).clock
        return HighWatermark.from_clock(now, late_arrival=self.late_arrival, step=STEP)

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        try:
            return await super().find_window(low, bound, high)
        except SourceError:
            return None


@fails(
    "the_event_loop_is_not_held",
)
class HoldsTheLoop(ListWindowTrigger):
    """For as long as it takes to look at each entry."""

    async def find_window(self, low: Position, bound: Position, high: Position | None) -> Window | None:
        window = await super().find_window(low, bound, high)
        time.sleep(0.006 * window.count if window else 0)  # noqa: ASYNC251 - that is what is wrong with it
        return window


@fails(
    "no_secret_is_told",
)
class TellsItsPassword(ListWindowTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        try:
            return await super().get_high_watermark()
        except SourceError as error:
            raise SourceError(str(error.__cause__)) from error


# --- Watchers that commit wrongly ---------------------------------------------------------------------------


@fails(
    "a_window_that_was_committed_does_not_come_again",
    "an_event_without_anything_follows_a_burst_once",
    "what_is_dated_in_the_future_waits_and_hides_nothing",
    "what_was_begun_long_ago_falls_in_no_delivered_window",
    "without_anything_new_there_is_no_event_and_the_watermark_stays",
)
class MovesTheWatermarkWithoutAWindow(ListWindowTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        bounds = await super().get_high_watermark()
        committer = self._committer
        if committer is not None and committer.head is not None and committer.head.high is None:
            committer.head = replace(committer.head, low=bounds.bound)
        return bounds


class _Otherwise(ListWindowTrigger):
    """Has a committer that does something otherwise."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)
        cls.spoil(producer._committer)
        return producer

    @staticmethod
    def spoil(committer: Any) -> None:
        raise NotImplementedError


@fails(
    "a_window_is_stored_as_intended_before_it_is_delivered",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_intended_window_stays_as_it_was_under_another_limit",
    "an_intended_window_that_something_left_is_still_the_very_same",
)
class DoesNotStoreWhatItIntends(_Otherwise):
    @staticmethod
    def spoil(committer: Any) -> None:
        async def intend(state: Any) -> Any:
            committer.head = state
            return state

        vars(committer)["intend"] = intend


@fails(
    "a_window_is_stored_as_intended_before_it_is_delivered",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_intended_window_stays_as_it_was_under_another_limit",
    "an_intended_window_that_something_left_is_still_the_very_same",
)
class StoresWhatItIntendsAsDelivered(_Otherwise):
    """ "Store, then yield"."""

    @staticmethod
    def spoil(committer: Any) -> None:
        save_at_once = committer.intend

        async def intend(state: Any) -> Any:
            await save_at_once(replace(state, low=state.high, high=None))
            return state

        vars(committer)["intend"] = intend


@fails(
    "an_intended_window_stays_as_it_was_under_another_limit",
    "one_window_is_in_flight_at_a_time",
)
class HasSeveralWindowsInFlight(_Otherwise):
    @staticmethod
    def spoil(committer: Any) -> None:
        async def settle() -> None:
            return

        vars(committer)["settle"] = settle


@fails(
    "a_watcher_stopped_while_it_saves_has_saved_or_not",
    "a_window_that_was_not_committed_comes_again_as_it_was",
    "after_a_kill_at_any_await_the_very_same_window_comes_again",
    "after_trouble_at_any_access_to_the_store_the_very_same_window_comes_again",
    "an_error_does_not_change_an_intended_window",
    "an_intended_window_stays_as_it_was_under_another_limit",
    "an_intended_window_that_something_left_is_still_the_very_same",
)
class GivesAWindowAnotherIdEachTime(_Otherwise):
    @staticmethod
    def spoil(committer: Any) -> None:
        take = committer.admit

        async def admit(emission: Any) -> None:
            emission.payload["watermark"]["event_id"] = str(next(_COUNTER))
            await take(emission)

        vars(committer)["admit"] = admit
