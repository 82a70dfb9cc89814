"""Test which rank waits for which, with known times."""

from __future__ import annotations

import re
from dataclasses import replace

from graphviz_torch.graph import Collective, RankTime
from graphviz_torch.graph.collective import align_times, rank_waits, with_times
from graphviz_torch.render.rank_chart import rank_rows, wait_lines

BARRIER = Collective("barrier", 0, group_size=2)


def test_the_rank_that_came_last_is_waited_for_whatever_the_clocks_say() -> None:
    # Both are back at the same moment: by the one clock 14 s, by the other 1,003 s.
    first, second = RankTime(0, "", 10.0, 4.0, 4.0), RankTime(1, "", 1002.0, 1.0, 1.0)
    [wait] = rank_waits([replace(BARRIER, times=(first, second))])
    assert (wait.late, wait.seconds) == (1, ((0, 3.0),))


def test_who_waited_early_for_what_takes_long_does_not_blame_another_rank() -> None:
    # Both began at once; it took 7 s. Rank 0 stood in its wait for 2 of them, rank 1 for none.
    busy, idle = RankTime(1, "", 0.0, 8.0, 0.1), RankTime(0, "", 0.0, 7.0, 2.0)
    assert list(rank_waits([replace(BARRIER, times=(idle, busy))])) == []


def test_the_ranks_of_another_group_and_messages_between_two_are_not_compared() -> None:
    times = RankTime(0, "a", 0.0, 4.0, 4.0), RankTime(1, "b", 0.0, 1.0, 1.0)
    sent = RankTime(0, "", 0.0, 4.0, 4.0), RankTime(1, "", 0.0, 1.0, 1.0)
    kinds = replace(BARRIER, times=times), replace(BARRIER, kind="recv", times=sent)
    assert list(rank_waits(kinds)) == []


def test_a_message_is_waited_for_by_the_rank_that_takes_it() -> None:
    send = Collective("send", 8, peer=1, times=(RankTime(0, "", 50.0, 0.1, 0.1),))
    recv = Collective("recv", 8, peer=0, where="b.py:9", times=(RankTime(1, "", 2.0, 3.1, 3.1),))
    back = replace(send, peer=0, times=(RankTime(1, "", 6.0, 0.1, 0.1),))
    assert [(w.collective, w.late, w.seconds) for w in rank_waits([send, recv, back])] == [
        (recv, 0, ((1, 3.0),))
    ]


def test_messages_are_paired_by_who_sends_to_whom_in_their_order() -> None:
    send = [
        Collective("send", 8, peer=peer, times=(RankTime(0, "", 50.0, 0.1, 0.1),))
        for peer in (1, 2, 1)
    ]
    recv = [
        Collective("recv", 8, peer=0, times=(RankTime(rank, "", 2.0, long, long),))
        for rank, long in ((2, 2.1), (1, 0.1), (1, 1.1))
    ]
    assert [(w.late, w.seconds) for w in rank_waits([*send, *recv])] == [
        (0, ((2, 2.0),)),
        (0, ((1, 1.0),)),
    ]


def test_a_wait_that_is_known_of_one_rank_alone_says_nothing() -> None:
    times = RankTime(0, "", 0.0, 4.0, 4.0), RankTime(1, "", 0.0, None, 0.1)
    assert list(rank_waits([replace(BARRIER, times=times)])) == []


def test_the_rows_of_ranks_end_together_where_all_stood() -> None:
    first, second = RankTime(0, "", 10.0, 4.0, 4.0), RankTime(1, "", 1002.0, 1.0, 1.0)
    later = RankTime(0, "", 15.0, 1.0, 1.0), RankTime(1, "", 1003.5, 1.5, 1.5)
    bars = align_times([replace(BARRIER, times=(first, second)), replace(BARRIER, times=later)])
    ends = {rank: [begin + long for begin, long, _ in rows] for rank, rows in bars.items()}
    assert ends == {0: [14.0, 16.0], 1: [14.0, 16.0]}


def test_ranks_that_share_a_group_with_a_third_one_stand_on_its_axis() -> None:
    pair = RankTime(0, "a", 1.0, 2.0, 2.0), RankTime(1, "a", 101.0, 2.0, 2.0)
    other = RankTime(1, "b", 104.0, 1.0, 1.0), RankTime(2, "b", 54.0, 1.0, 1.0)
    # The group of ranks 1 and 2 comes first in the list.
    rows = [replace(BARRIER, times=times) for times in (other, pair)]
    bars = align_times(rows)
    begins = {rank: rows[0][0] for rank, rows in bars.items()}
    assert begins[1] - begins[2] == 0.0
    assert [begin for begin, _, _ in bars[0]] == [begin for begin, _, each in bars[1][1:]]


def test_copies_of_a_collective_are_equal_whatever_their_times_are() -> None:
    time = RankTime(1, "", 0.0, 1.0, 1.0)
    other = replace(BARRIER, times=(time,))
    assert other == BARRIER
    assert hash(other) == hash(BARRIER)
    assert with_times([BARRIER, other, other]).times == (time,)


def test_groups_with_roots_of_their_own_have_no_root_together() -> None:
    first, second = (Collective("broadcast", 8, group="tp", peer=root) for root in (0, 2))
    assert with_times([first, first]).peer == 0
    assert with_times([first, second]) == replace(first, peer=None)


def test_the_axis_of_the_ranks_counts_upwards_from_nothing() -> None:
    times = RankTime(0, "", 1.0, 8.0, 8.0), RankTime(1, "", 5.0, 4.0, 4.0)
    each = Collective("barrier", 0, group_size=2, where="train.py:9", times=times)
    said = re.findall(r">([\d.]+) s<", rank_rows([each], 500))
    seconds = [float(text) for text in said]
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (0.0, 8.0)


def test_only_waits_of_a_millisecond_or_more_are_told() -> None:
    def waits(long: float) -> list[str]:
        times = RankTime(0, "", 1.0, long, long), RankTime(1, "", 1.0 + long, 1e-5, 1e-5)
        return wait_lines([Collective("barrier", 0, group_size=2, where="t.py:9", times=times)])

    assert waits(0.5) == ["rank 0 waited 500 ms for rank 1 in barrier at t.py:9"]
    assert waits(0.0005) == []
