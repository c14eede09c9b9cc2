"""What was reported in public about fused RoPE kernels and their harnesses, and where it is shown.

Entries keep the numbers under which they were collected; the gaps are reports that say nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One report: by which planted bugs of the catalogue it is shown, by which tests of another
    suite (paths below ``suites/``), or why it cannot be shown."""

    id: str
    report: str
    what: str
    bugs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    why: str = ""


FALSE_PASSES = "meta/false_passes/test_judging.py"
EVIDENCE = "meta/false_passes/test_evidence.py"

ENTRIES = (
    Entry(
        "B001",
        "NVIDIA/Megatron-LM#5412",
        "the rotation of the query overwrites the projection's output, which its backward needs",
        ("overwrites_what_was_saved",),
    ),
    Entry(
        "B002",
        "NVIDIA/Megatron-LM#5526",
        "the inverse rotation overwrites the attention output that the backward saved",
        ("overwrites_the_saved_output",),
        ("consumers/test_fused_against_unfused.py::test_a_silent_overwrite_is_caught",),
    ),
    Entry(
        "B005",
        "NVIDIA/Megatron-LM#5963",
        "in-place conversion between pairs and halves races between warps",
        ("converts_without_a_barrier",),
        ("meta/test_race.py::test_a_race_is_nondeterministic_and_shows_its_rate",),
    ),
    Entry(
        "B007",
        "NVIDIA/Megatron-LM#4640",
        "a race was taken for noise because it passed when run again",
        ("is_wrong_now_and_then",),
        ("meta/false_passes/test_running.py::test_what_fails_once_has_failed",),
    ),
    Entry(
        "B008",
        "NVIDIA/Megatron-LM#5317, #5497, #5799",
        "a table narrower than the rotated lanes is read past its rows",
        ("reads_past_a_narrow_table",),
    ),
    Entry(
        "B009",
        "NVIDIA/Megatron-LM#5497",
        "the guard against it was an assert",
        ("asserts_the_width",),
    ),
    Entry(
        "B011",
        "radixark/Megatron-LM#5",
        "heads masked within their tile, lanes that must be a power of two, no value at all",
        ("masks_heads_within_the_tile", "needs_a_power_of_two", "needs_a_value"),
    ),
    Entry(
        "B012",
        "NVIDIA/Megatron-LM#6340",
        "a value without lanes cannot be viewed",
        ("infers_a_size_of_nothing", "needs_a_value"),
    ),
    Entry(
        "B013",
        "NVIDIA/Megatron-LM#5951",
        "row times stride passes 2^31 in 32 bits",
        tests=("test_large_offsets.py::test_an_offset_in_32_bits_is_seen",),
    ),
    Entry(
        "B014",
        "NVIDIA/Megatron-LM#5011",
        "rows behind the last sequence read the table at row -1",
        ("finds_no_sequence",),
    ),
    Entry(
        "B018",
        "NVIDIA/Megatron-LM#6184, #6185",
        "a backward into another buffer that does not copy the lanes it leaves alone",
        ("leaves_nope_unwritten",),
    ),
    Entry(
        "B019",
        "NVIDIA/Megatron-LM#5944",
        "the packed fused path ignores inverse, layout flags and mscale",
        ("drops_inverse", "drops_remove_interleaving"),
        ("test_dispatch.py::test_a_flag_that_the_fused_path_drops_is_seen",),
    ),
    Entry(
        "B020",
        "NVIDIA/Megatron-LM#5944",
        "what the table counts is guessed from its length",
        ("guesses_what_the_table_counts",),
        ("test_dispatch.py::test_a_table_guessed_from_its_length_is_seen",),
    ),
    Entry(
        "B023",
        "NVIDIA/Megatron-LM#5018",
        "the key of the table cache lacks the factor of the table",
        tests=("test_tables.py::test_a_key_that_lacks_a_parameter_is_seen",),
    ),
    Entry(
        "B024",
        "NVIDIA/Megatron-LM#2733, #3026, #3402",
        "the indexer rotates the wrong lanes",
        ("rotates_the_trailing_lanes",),
        (
            "consumers/test_against_float64.py::"
            "test_rotating_the_wrong_lanes_of_the_indexer_is_seen",
        ),
    ),
    Entry(
        "B027",
        "NVIDIA/Megatron-LM#4977",
        "a table of the local length gives every rank local positions",
        ("counts_within_the_rank",),
    ),
    Entry(
        "B028",
        "NVIDIA/Megatron-LM#3405",
        "a group chosen for each micro-batch does not reach the rotation",
        ("keeps_the_group_of_the_start",),
    ),
    Entry(
        "B030",
        "NVIDIA/Megatron-LM#6821",
        "a group at run time is not handed on, offsets count the rows of all ranks",
        ("forgets_the_group",),
    ),
    Entry(
        "B031",
        "NVIDIA/Megatron-LM#1612",
        "a table with a batch axis is cut along the wrong axis",
        ("slices_the_batch_for_the_sequence",),
    ),
    Entry(
        "B034",
        "NVIDIA/Megatron-LM#5890",
        "a wrapper kept the signature of an older function",
        ("has_an_older_signature",),
    ),
    Entry(
        "B038",
        "ISEEKYAN/Megatron-LM#111",
        "packed context parallelism was wrong, and its test had one sequence",
        ("takes_a_pack_for_one_sequence",),
        ("meta/false_passes/test_searching.py::test_a_bug_in_a_usual_blind_spot_is_met",),
    ),
    Entry(
        "B040",
        "NVIDIA-NeMo/Megatron-Bridge#4271, #4305",
        "a fraction applied twice, so that reference and kernel rotate an eighth of the lanes",
        tests=(
            "test_reference_oracle.py::test_counts_are_one_for_copies_and_two_for_rotated_lanes",
            "test_dispatch.py::test_both_paths_refuse_alike",
        ),
    ),
    Entry(
        "B043",
        "NVIDIA/TransformerEngine#2240",
        "tables built under autocast",
        ("builds_its_table_in_16_bits",),
        ("test_tables.py::test_autocast_would_be_seen",),
    ),
    Entry(
        "B045",
        "NVIDIA/TransformerEngine#1296",
        "a layer hands on neither the group nor the offsets",
        ("counts_through_the_pack", "forgets_the_group"),
    ),
    Entry(
        "B048",
        "NVIDIA/TransformerEngine#536",
        "a table slice of length 1 is broadcast over all positions",
        ("broadcasts_a_table_of_one_row",),
    ),
    Entry(
        "B049",
        "NVIDIA/TransformerEngine#3287",
        "test files that belong to no job",
        tests=("meta/false_passes/test_running.py::test_the_rule_sees_what_is_planted",),
    ),
    Entry(
        "B052",
        "linkedin/Liger-Kernel#477",
        "every batch entry uses the table of the first",
        ("reads_batch_row_0",),
    ),
    Entry(
        "B053",
        "linkedin/Liger-Kernel#804",
        "32-bit program ids overflow in huge tensors",
        tests=("test_large_offsets.py::test_an_offset_in_32_bits_is_seen",),
    ),
    Entry(
        "B058",
        "linkedin/Liger-Kernel#1305",
        "both sides of a test shared one gradient, which one of them overwrote",
        ("rotates_the_incoming_gradient",),
        (f"{FALSE_PASSES}::test_a_tensor_is_never_compared_with_itself",),
    ),
    Entry(
        "B059",
        "linkedin/Liger-Kernel#259, #261",
        "a comparison that passed NaN, and one wrong element",
        tests=(
            f"{FALSE_PASSES}::test_what_is_not_finite_agrees_with_itself_only",
            f"{FALSE_PASSES}::test_neither_a_small_relative_nor_a_small_absolute_error_excuses",
        ),
    ),
    Entry(
        "B062",
        "Dao-AILab/flash-attention#569",
        "a branch of the backward that raises NameError",
        ("names_what_is_not_there",),
    ),
    Entry(
        "B063",
        "Dao-AILab/flash-attention 97951590",
        "a launch on the current device instead of the tensors'",
        tests=("gpu/test_streams_and_compile.py::test_tensors_need_not_be_on_the_current_device",),
    ),
    Entry(
        "B066",
        "fla-org/flash-linear-attention#423",
        "rows past the end of the last tile are not masked",
        ("masks_no_rows",),
    ),
    Entry(
        "B068",
        "fla-org/flash-linear-attention#871",
        "a backward with the strides of a contiguous gradient",
        ("takes_gradients_for_packed",),
    ),
    Entry(
        "B069",
        "fla-org/flash-linear-attention#1082",
        "32-bit offsets, one family of kernels after the other",
        tests=(
            "test_large_offsets.py::test_a_far_input_is_a_near_input",
            "test_large_offsets.py::test_an_offset_in_32_bits_is_seen",
        ),
    ),
    Entry(
        "B071",
        "unslothai/unsloth#3781",
        "a method taken for its result, so that expanded gradients are never copied",
        ("never_calls_is_contiguous",),
    ),
    Entry(
        "B073",
        "unslothai/unsloth#3216",
        "a cached table is used beyond its length",
        ("reuses_a_shorter_table",),
        ("test_tables.py::test_growth_keeps_the_rows_and_a_shorter_call_shares_them",),
    ),
    Entry(
        "B074",
        "NVIDIA/apex#1750",
        "the backward writes 1 into lanes that are passed through",
        ("passes_ones_through",),
    ),
    Entry(
        "B076",
        "flashinfer-ai/flashinfer#697, #1129, #2255",
        "positions in int64 are read as int32",
        ("reads_int64_as_int32",),
    ),
    Entry(
        "B077",
        "flashinfer-ai/flashinfer#619",
        "wrong for some shapes only",
        ("is_wrong_for_many_heads",),
    ),
    Entry(
        "B079",
        "ROCm/aiter#627",
        "a reference that rounds more than the kernel",
        tests=(f"{EVIDENCE}::test_a_reference_that_cannot_be_an_oracle_is_refused",),
    ),
    Entry(
        "B082",
        "PaddlePaddle/Paddle#74716",
        "a backward that is right only where both halves of the table are equal",
        ("takes_halves_for_equal",),
    ),
    Entry(
        "B083",
        "PaddlePaddle/Paddle#74347",
        "one tensor has more rows than the other",
        ("takes_the_rows_of_one_for_both",),
    ),
    Entry(
        "B084",
        "vllm-project/vllm#16658, #17091, #18046",
        "a sliced query is read as if it were contiguous",
        ("ignores_strides",),
    ),
    Entry(
        "B085",
        "sgl-project/sglang#20598",
        "one head stride for two tensors",
        ("takes_one_stride_for_both",),
    ),
    Entry(
        "B086",
        "vllm-project/vllm#35348",
        "a replayed CUDA graph keeps the positions of its capture",
        tests=("gpu/test_replay.py::test_a_packing_that_is_remembered_is_seen",),
    ),
    Entry(
        "B091",
        "kvcache-ai/sglang#66",
        "one of two outputs is not written, and the test looked at the other",
        ("forgets_the_key",),
    ),
    Entry(
        "B093",
        "pytorch/helion#3080",
        "a tile is stored and loaded again in another shape without a barrier",
        ("reloads_without_a_barrier",),
    ),
    Entry(
        "B094",
        "flagos-ai/FlagGems#5142",
        "each lane reads its partner and writes itself: found by reading, never reproduced",
        ("reads_its_partner_without_a_barrier",),
    ),
    Entry(
        "B095",
        "vllm-project/vllm#50903, #57681",
        "a shuffle between lanes inside of a branch that not all of them take",
        why="In Triton the compiler exchanges lanes, and never in such a branch, so that no kernel "
        "can be written with this fault. In CUDA it can; values show it on a GPU.",
    ),
    Entry(
        "B096",
        "vllm-project/vllm#40680, #52005",
        "a slice assignment with a stride of 3 is compiled wrongly",
        tests=(
            "gpu/test_streams_and_compile.py::"
            "test_compiled_code_gives_the_same_bits_for_two_sizes_or_says_unsupported",
        ),
        why="A fault of a compiler cannot be planted in what it compiles.",
    ),
    Entry(
        "B099",
        "EleutherAI/gpt-neox#1003, huggingface/transformers#29285, huggingface/diffusers#13922",
        "positions or frequencies in 16 bits",
        ("builds_its_table_in_16_bits",),
        ("test_dispatch.py::test_angles_in_16_bits_are_refused",),
    ),
    Entry(
        "B102",
        "kekzl/imp#1314, #1354",
        "a result depends on its neighbours in the batch",
        ("reads_its_neighbours",),
    ),
    Entry(
        "B104",
        "triton-lang/triton#54, #781, #2549",
        "autotuning runs an in-place kernel many times on the real argument",
        ("rotates_while_it_tunes",),
    ),
    Entry(
        "B105",
        "triton-lang/triton#6547",
        "restoring and zeroing one argument leaves it zero",
        ("zeroes_what_it_restores",),
    ),
    Entry(
        "B106",
        "triton-lang/triton#9230",
        "a tile that writes half of the output passes, since another one wrote the rest",
        ("writes_half_in_one_tile",),
        ("meta/false_passes/test_searching.py::test_a_bug_in_a_usual_blind_spot_is_met",),
    ),
    Entry(
        "B110",
        "triton-lang/triton#9368, vllm-project/vllm#42425",
        "runs differ because the choice of a tile follows a clock",
        ("chooses_by_time",),
    ),
    Entry(
        "B112",
        "vllm-project/vllm#32408, #46409, #51083, #57112",
        "a fixed tolerance far below an ulp of the products accuses right kernels",
        ("rounds_a_product_to_16_bits",),
    ),
    Entry(
        "B114",
        "ScalingIntelligence/KernelBench#82",
        "a kernel that zeroes its input, or returns memory that held the answer, passes",
        tests=(
            f"{EVIDENCE}::test_the_reference_reads_what_the_candidate_cannot_write",
            f"{EVIDENCE}::test_memory_that_held_the_right_answer_is_no_answer",
        ),
    ),
    Entry(
        "B115",
        "ScalingIntelligence/KernelBench#165",
        "zeros pass under a tolerance larger than the outputs",
        tests=(f"{FALSE_PASSES}::test_zeros_pass_nowhere",),
    ),
    Entry(
        "B121",
        "SauersML/gam#2422, #2424",
        "tests that return without a GPU have passed and asserted nothing",
        tests=("meta/false_passes/test_running.py::test_the_rule_sees_what_is_planted",),
    ),
)
