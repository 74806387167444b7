"""Watchers that are broken, each in one way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from dataclasses import field, replace
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.watermark.change import HighWatermark, Page
from airflow.providers.watermark.delivery import AckModeProducer
from airflow.providers.watermark.exceptions import SourceError
from airflow.providers.watermark.position import Position, floor_timestamp
from airflow.providers.watermark.testing.doubles import STEP, ListSource, ListTrigger
from airflow.providers.watermark.watermark import Sweep
from tests.contract.declaring import fails

Pages = AsyncGenerator[Page, None]
_COUNTER = itertools.count()


# --- Watchers that read wrongly -----------------------------------------------------------------------------


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_tie_with_what_was_delivered_is_news",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "another_version_at_the_same_position_is_delivered_too",
    "frequent_crashes_do_not_prevent_progress",
    "what_is_remembered_is_bounded",
    "what_was_begun_before_a_crash_is_delivered_once",
)
class TakesOnlyWhatIsNewerThanTheNewest(ListTrigger):
    """``WHERE stamp > (the newest stamp delivered)``: the classic."""

    async def read_changes(self, sweep: Sweep) -> Pages:
        newest = max(sweep._seen.values(), default=None)
        async for page in super().read_changes(sweep):
            changes = [change for change in page.changes if newest is None or change.position > newest]
            yield Page(changes=changes, cursor=page.changes[-1].cursor)


@fails(
    "what_lands_behind_the_reading_is_not_lost",
    "what_lands_between_the_bound_and_the_reading_is_not_lost",
)
class ReadsBeforeItTakesTheBound(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        after, self._entries = "", []
        while entries := await ListSource.named(self.list_name).page(after):
            self._entries += entries
            after = entries[-1][0]
        return await super().get_high_watermark()

    async def read_changes(self, sweep: Sweep) -> Pages:
        after = sweep.cursor if isinstance(sweep.cursor, str) else ""
        async for page in super().read_changes(sweep):
            known = [change for change in page.changes if change.identity in dict(self._entries)]
            yield Page(changes=[change for change in known if change.identity > after], cursor=page.cursor)


@fails(
    "a_backlog_of_many_events_drains_in_one_sweep",
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "an_acknowledgement_behind_a_gap_commits_nothing",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "frequent_crashes_do_not_prevent_progress",
    "no_event_carries_more_changes_than_allowed",
    "old_news_starves_nothing",
    "things_at_one_position_are_all_delivered",
)
class LimitsBeforeItDrops(ListTrigger):
    """``LIMIT n``, of which nothing may be news."""

    async def read_changes(self, sweep: Sweep) -> Pages:
        left = self.max_entries_per_event
        async for page in super().read_changes(sweep):
            yield Page(changes=page.changes[:left])
            left -= len(page.changes)
            if left <= 0:
                return


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "frequent_crashes_do_not_prevent_progress",
    "reading_goes_on_right_behind_the_cursor",
    "reading_only_goes_forward",
)
class ReadsBackwards(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        pages = [page async for page in super().read_changes(sweep)]
        for page in reversed(pages):
            yield Page(changes=page.changes[::-1])


@fails(
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "reading_goes_on_right_behind_the_cursor",
)
class IgnoresTheCursor(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        sweep.cursor = None
        async for page in super().read_changes(sweep):
            yield page


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "frequent_crashes_do_not_prevent_progress",
    "reading_goes_on_right_behind_the_cursor",
)
class TellsItsCursorTooEarly(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        async for page in super().read_changes(sweep):
            for change in page.changes:
                yield Page(changes=[replace(change, place="~")], cursor="~")


@fails(
    "a_change_has_the_same_id_whenever_it_is_read",
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "a_stopped_watcher_commits_nothing_more",
    "a_store_that_fails_at_the_start_is_no_new_start",
    "a_store_that_fails_later_is_asked_again",
    "a_watcher_stopped_while_it_saves_has_saved_or_not",
    "a_young_acknowledgement_commits_nothing",
    "an_acknowledgement_behind_a_gap_commits_nothing",
    "another_version_at_the_same_position_is_delivered_too",
    "frequent_crashes_do_not_prevent_progress",
    "the_last_of_several_versions_in_one_step_is_delivered_last",
    "tuning_starts_nothing_anew",
    "what_was_acknowledged_and_not_committed_comes_again",
    "what_was_begun_before_a_crash_is_delivered_once",
    "what_was_committed_does_not_come_again",
    "what_was_yielded_and_not_acknowledged_comes_again",
    "where_to_start_means_nothing_to_a_stored_watermark",
)
class GivesAnotherIdInEachProcess(ListTrigger):
    """As ``hash()`` of a text would."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._salt = str(next(_COUNTER))

    async def read_changes(self, sweep: Sweep) -> Pages:
        async for page in super().read_changes(sweep):
            yield Page(changes=[replace(change, version=self._salt, id="") for change in page.changes])


@fails("another_version_at_the_same_position_is_delivered_too")
class GivesOneIdToAllVersions(ListTrigger):
    async def read_changes(self, sweep: Sweep) -> Pages:
        async for page in super().read_changes(sweep):
            yield Page(changes=[replace(change, version="", id="") for change in page.changes])


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_store_that_fails_at_the_start_is_no_new_start",
    "a_store_that_fails_later_is_asked_again",
    "after_an_error_nothing_is_lost_or_repeated",
    "frequent_crashes_do_not_prevent_progress",
    "tuning_starts_nothing_anew",
    "what_was_begun_before_a_crash_is_delivered_once",
    "what_was_committed_does_not_come_again",
    "where_to_start_means_nothing_to_a_stored_watermark",
)
class ForgetsInACrashWhatItHasSeen(ListTrigger):
    async def open(self) -> None:
        self._fresh = True

    async def read_changes(self, sweep: Sweep) -> Pages:
        if self._fresh:
            sweep._seen.clear()
        self._fresh = False
        async for page in super().read_changes(sweep):
            yield page


# --- Watchers that are wrong about the bound ----------------------------------------------------------------


@fails(
    "a_tie_with_what_was_delivered_is_news",
    "another_version_at_the_same_position_is_delivered_too",
    "settled_delivery_waits_for_the_bound_and_remembers_nothing",
    "the_bound_keeps_the_margin_by_the_sources_clock",
    "what_arrives_late_within_the_margin_is_delivered",
)
class LeavesNoMargin(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        bounds = await super().get_high_watermark()
        assert bounds.due is not None
        return replace(bounds, bound=bounds.due - STEP)


@fails(
    "what_was_begun_before_a_crash_is_delivered_once",
    "what_was_begun_before_the_watcher_is_delivered_once",
    "what_was_begun_long_ago_is_delivered_once",
)
class ForgetsWhatIsUnderWay(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        return replace(await super().get_high_watermark(), late={})


@fails(
    "from_now_only_what_comes_after_is_delivered",
    "the_bound_keeps_the_margin_by_the_sources_clock",
    "the_last_of_several_versions_in_one_step_is_delivered_last",
    "what_is_dated_in_the_future_waits_and_hides_nothing",
)
class DeliversWhatIsNotDue(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        return replace(await super().get_high_watermark(), due=None, future=None)


@fails("from_an_instant_what_comes_at_or_after_it_is_delivered")
class StartsBehindTheInstant(ListTrigger):
    def start_position(self, start: str) -> Position:
        return floor_timestamp(super().start_position(start), STEP) + timedelta(seconds=1)


# --- Watchers that fail wrongly -----------------------------------------------------------------------------


@fails(
    "after_an_error_nothing_is_lost_or_repeated",
    "an_error_is_told_once_with_the_watchers_identity",
    "an_error_stands_in_the_stored_status_until_it_is_mended",
    "what_was_begun_before_a_crash_is_delivered_once",
    "what_was_begun_before_the_watcher_is_delivered_once",
    "what_was_begun_long_ago_is_delivered_once",
)
class TakesAnErrorForAnEmptyList(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        now = ListSource.named(self.list_name).clock
        return HighWatermark.from_clock(now, late_arrival=self.late_arrival, step=STEP)

    async def read_changes(self, sweep: Sweep) -> Pages:
        try:
            async for page in super().read_changes(sweep):
                yield page
        except SourceError:
            return


@fails(
    "after_an_error_nothing_is_lost_or_repeated",
    "an_error_at_the_start_is_got_over",
    "an_error_is_no_event_and_moves_no_watermark",
    "an_error_is_told_once_with_the_watchers_identity",
    "an_error_stands_in_the_stored_status_until_it_is_mended",
    "bad_arguments_do_not_end_the_watch",
    "no_secret_is_told",
)
class EndsOnAnError(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        try:
            return await super().get_high_watermark()
        except SourceError as error:
            raise asyncio.CancelledError from error


@fails("an_error_is_told_once_with_the_watchers_identity")
class TellsTheSameErrorInOtherWords(ListTrigger):
    async def get_high_watermark(self) -> HighWatermark:
        try:
            return await super().get_high_watermark()
        except SourceError as error:
            msg = f"{error}, request {next(_COUNTER)}"
            raise SourceError(msg) from error


@fails("a_stopped_watcher_leaves_no_task_behind")
class LeavesATaskBehind(ListTrigger):
    async def open(self) -> None:
        self._task = asyncio.create_task(asyncio.sleep(20))


# --- Watchers that commit wrongly ---------------------------------------------------------------------------


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "a_stopped_watcher_commits_nothing_more",
    "a_young_acknowledgement_commits_nothing",
    "an_acknowledgement_behind_a_gap_commits_nothing",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "frequent_crashes_do_not_prevent_progress",
    "what_was_yielded_and_not_acknowledged_comes_again",
)
class CommitsWhatIsNotAcknowledged(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)
        committer = producer._committer
        admit = committer.admit

        async def admit_as_acknowledged(emission: Any) -> None:
            payload = emission.payload
            await admit(emission)
            committer.acknowledge(emission)
            emission.acknowledged, emission.payload = -100, payload

        vars(committer)["admit"] = admit_as_acknowledged
        return producer


@fails("a_stopped_watcher_commits_nothing_more", "a_young_acknowledgement_commits_nothing")
class CommitsWithoutDelay(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)

        acknowledge = producer._committer.acknowledge

        def acknowledge_as_aged(emission: Any) -> None:
            acknowledge(emission)
            emission.acknowledged = -100

        vars(producer._committer)["acknowledge"] = acknowledge_as_aged
        return producer


@fails("an_event_that_was_not_stored_comes_again_with_all_after_it")
class TakesAFailureForAnAcknowledgement(ListTrigger):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> AckModeProducer:
        producer = super().create_shared_stream_producer(kwargs)
        vars(producer._committer)["fail"] = producer._committer.acknowledge
        return producer


@fails(
    "a_stopped_watcher_commits_nothing_more",
    "a_stopped_watcher_leaves_no_task_behind",
    "a_watcher_can_be_stopped_while_it_reads",
    "a_watcher_stopped_while_it_saves_has_saved_or_not",
    "the_watermark_of_another_source_is_refused",
)
class SavesWhenItIsStopped(ListTrigger):
    async def close(self) -> None:
        if self._committer is not None and self._committer.head is not None:
            await self._committer._save(self._committer.head)


# --- Watchers that are configured wrongly -------------------------------------------------------------------


@fails(
    "bad_arguments_do_not_end_the_watch",
    "bad_arguments_raise_neither_in_the_constructor_nor_in_the_triggerer",
)
class RaisesInItsConstructor(ListTrigger):
    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.list_name, str):
            msg = "list_name must be a string"
            raise ValueError(msg)  # noqa: TRY004 - it is this that ends a triggerer


@fails("equal_triggers_are_stored_alike")
class IsStoredDifferentlyEachTime(ListTrigger):
    token: int = field(default_factory=lambda: next(_COUNTER))


@fails("arguments_are_json_scalars_and_flat_lists_of_them")
class HasAnArgumentThatIsNoScalar(ListTrigger):
    pause: tuple[int, ...] = (1, 2)


@fails(
    "a_bad_argument_is_refused_in_the_dag_file_by_its_name",
    "an_unknown_argument_is_accepted_and_refused_in_the_dag_file",
)
class AcceptsAnything(ListTrigger):
    def problems(self) -> Iterator[str]:
        yield from ()


@fails(
    "a_crash_between_two_events_repeats_the_second_alone",
    "a_crash_in_the_midst_of_what_is_settled_repeats_the_second_event_alone",
    "an_acknowledgement_behind_a_gap_commits_nothing",
    "an_event_that_was_not_stored_comes_again_with_all_after_it",
    "frequent_crashes_do_not_prevent_progress",
    "no_event_carries_more_changes_than_allowed",
)
class IgnoresTheCountLimit(ListTrigger):
    @property
    def max_changes_per_event(self) -> int:
        return 500


@fails("no_event_has_more_bytes_than_allowed")
class IgnoresTheByteLimit(ListTrigger):
    async def open(self) -> None:
        self.max_event_bytes = 10**9


@fails("another_source_starts_anew_by_default", "the_watermark_of_another_source_is_refused")
class TakesAllListsForOne(ListTrigger):
    source_fields: ClassVar[tuple[str, ...]] = ()


@fails("tuning_starts_nothing_anew")
class TakesTuningForTheSource(ListTrigger):
    source_fields: ClassVar[tuple[str, ...]] = ("list_name", "poll_interval")
