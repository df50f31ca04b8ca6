"""Triton kernels: matrix products of the rows of each expert with its weights, without sorted copies of tokens.

All kernels accumulate in fp32. A row of a *sorted* tensor belongs to an expert; kernels gather the rows of tokens, and
scatter results to pairs, while they compute (see `Routing`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tachograph.plugins.kernels._routing import Routing

__all__ = [
    "Tiles",
    "cut_tiles",
    "gate_and_up",
    "gate_and_up_backward",
    "grouped_matmul",
    "grouped_weight_gradient",
    "weigh_rows",
]


class Tiles(NamedTuple):
    """Rows of all experts in tiles of equal height: a tile never has rows of two experts.

    The number of tiles depends on the routing, which only the device knows. So there is room for the largest possible
    number, and surplus tiles have an expert of -1.

    Args:
        expert: the expert of each tile.
        first_row: the first row of each tile.
        height: the number of rows of a tile.
    """

    expert: torch.Tensor
    first_row: torch.Tensor
    height: int


class _Launch(NamedTuple):
    """How a kernel divides its work."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


def _choose_launch(mean_rows: float, element_size: int) -> _Launch:
    if element_size > 2:
        return _Launch(64, 64, 32, 4, 2)
    if mean_rows <= 64:
        return _Launch(64, 256, 64, 4, 4)
    return _Launch(128, 256, 64, 8, 4)


def _choose_gradient_launch(element_size: int) -> _Launch:
    if element_size > 2:
        return _Launch(64, 64, 32, 4, 2)
    return _Launch(128, 128, 32, 4, 4)


def cut_tiles(routing: Routing, dtype: torch.dtype) -> Tiles:
    """Cut the rows of each expert into tiles, for products of this type."""
    height = _choose_launch(routing.num_pairs / routing.num_experts, dtype.itemsize).rows
    room = routing.num_pairs // height + min(routing.num_experts, routing.num_pairs)
    tiles = torch.full((2, room), -1, dtype=torch.int32, device=routing.ends.device)
    _cut_tiles[(routing.num_experts,)](
        routing.ends,
        tiles[0],
        tiles[1],
        routing.num_experts,
        height=height,
        block=triton.next_power_of_2(routing.num_experts),
    )
    return Tiles(tiles[0], tiles[1], height)


def grouped_matmul(
    rows: torch.Tensor,
    weights: torch.Tensor,
    routing: Routing,
    tiles: Tiles,
    *,
    gather: bool = False,
    scatter: bool = False,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply each row with the weights of its expert.

    Args:
        rows: sorted rows, or the tokens if `gather`.
        weights: of shape (experts, inputs, outputs), with any strides.
        routing: the routing.
        tiles: its tiles.
        gather: read the row of a token for each of its pairs.
        scatter: write the row of each pair, in the order of pairs instead of sorted.
        scale: a factor for each pair.
    """
    num_experts, depth, width = weights.shape
    launch = _choose_launch(routing.num_pairs / num_experts, rows.element_size())
    new = torch.zeros if routing.has_remote else torch.empty
    products = new((routing.num_pairs, width), dtype=rows.dtype, device=rows.device)
    num_columns = triton.cdiv(width, launch.columns)
    _grouped_matmul[(tiles.expert.numel() * num_columns,)](
        rows,
        weights,
        products,
        scale,
        routing.order,
        routing.ends,
        tiles.expert,
        tiles.first_row,
        tiles.expert.numel(),
        width,
        depth,
        *rows.stride(),
        *weights.stride(),
        *products.stride(),
        top_k=routing.top_k,
        gather=gather,
        scatter=scatter,
        scaled=scale is not None,
        whole_depth=depth % launch.depth == 0,
        whole_width=width % launch.columns == 0,
        precision=_precision(rows),
        tile_rows=tiles.height,
        tile_columns=launch.columns,
        tile_depth=launch.depth,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return products


def grouped_weight_gradient(
    gradients: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    routing: Routing,
    *,
    gather_gradients: bool = False,
    gather_rows: bool = False,
) -> torch.Tensor:
    """Return the gradient of the weights of each expert: the sum of outer products of its rows with their gradients.

    Args:
        gradients: the gradients of products, sorted, or of tokens if `gather_gradients`.
        rows: the rows that were multiplied, sorted, or of tokens if `gather_rows`.
        weights: the weights, of shape (experts, inputs, outputs): the gradient has their shape and strides.
        routing: the routing.
        gather_gradients: read the gradient of a token for each of its pairs.
        gather_rows: read the row of a token for each of its pairs.
    """
    num_experts, depth, width = weights.shape
    gradient = torch.empty_like(weights, dtype=rows.dtype)
    launch = _choose_gradient_launch(rows.element_size())
    grid = (num_experts * triton.cdiv(width, launch.rows) * triton.cdiv(depth, launch.columns),)
    _grouped_weight_gradient[grid](
        gradients,
        rows,
        gradient,
        routing.order,
        routing.ends,
        depth,
        width,
        *gradients.stride(),
        *rows.stride(),
        *gradient.stride(),
        top_k=routing.top_k,
        gather_gradients=gather_gradients,
        gather_rows=gather_rows,
        whole_outputs=width % launch.rows == 0,
        whole_inputs=depth % launch.columns == 0,
        precision=_precision(rows),
        tile_inputs=launch.columns,
        tile_outputs=launch.rows,
        tile_rows=launch.depth,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return gradient


def weigh_rows(
    gradients: torch.Tensor, rows: torch.Tensor, scale: torch.Tensor, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply sorted gradients, in place, with the factor of their pair.

    Returns:
        the gradient of the factors, and the rows multiplied with their factors.
    """
    weighted = torch.empty_like(rows)
    scale_gradient = torch.zeros_like(scale) if routing.has_remote else torch.empty_like(scale)
    width = rows.shape[1]
    _weigh_rows[(routing.num_pairs,)](
        gradients,
        rows,
        weighted,
        scale,
        scale_gradient,
        routing.order,
        routing.ends,
        routing.num_experts,
        width,
        block=min(1024, triton.next_power_of_2(width)),
    )
    return scale_gradient, weighted


def gate_and_up(projected: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up for rows that hold the gate and then the up projection."""
    num_rows, width = projected.shape[0], projected.shape[1] // 2
    activated = torch.empty((num_rows, width), dtype=projected.dtype, device=projected.device)
    block = min(1024, triton.next_power_of_2(width))
    _gate_and_up[(num_rows, triton.cdiv(width, block))](projected, activated, width, block=block)
    return activated


def gate_and_up_backward(gradient: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the argument of `gate_and_up`."""
    num_rows, width = gradient.shape
    projected_gradient = torch.empty_like(projected)
    block = min(1024, triton.next_power_of_2(width))
    grid = (num_rows, triton.cdiv(width, block))
    _gate_and_up_backward[grid](gradient, projected, projected_gradient, width, block=block)
    return projected_gradient


def _precision(rows: torch.Tensor) -> str:
    if rows.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "ieee"


@triton.jit
def _cut_tiles(ends_pointer, expert_pointer, first_row_pointer, num_experts, height: tl.constexpr, block: tl.constexpr):
    expert = tl.program_id(0)
    others = tl.arange(0, block)
    ends = tl.load(ends_pointer + others, mask=others < num_experts, other=0)
    starts = tl.load(ends_pointer + others - 1, mask=(others > 0) & (others < num_experts), other=0)
    tile_counts = tl.where(others < num_experts, (ends - starts + height - 1) // height, 0)
    first_tile = tl.sum(tl.where(others < expert, tile_counts, 0), 0)
    num_tiles = tl.sum(tl.where(others == expert, tile_counts, 0), 0)
    start = tl.sum(tl.where(others == expert, starts, 0), 0)
    for tile in range(num_tiles):
        tl.store(expert_pointer + first_tile + tile, expert)
        tl.store(first_row_pointer + first_tile + tile, start + tile * height)


@triton.jit
def _grouped_matmul(
    rows_pointer,
    weights_pointer,
    products_pointer,
    scale_pointer,
    order_pointer,
    ends_pointer,
    tile_expert_pointer,
    tile_row_pointer,
    num_tiles,
    width,
    depth,
    row_stride,
    row_depth_stride,
    expert_stride,
    weight_depth_stride,
    weight_column_stride,
    product_stride,
    product_column_stride,
    top_k: tl.constexpr,
    gather: tl.constexpr,
    scatter: tl.constexpr,
    scaled: tl.constexpr,
    whole_depth: tl.constexpr,
    whole_width: tl.constexpr,
    precision: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_depth: tl.constexpr,
):
    num_columns = tl.cdiv(width, tile_columns)
    program = tl.program_id(0)
    # Neighbours share rows and weights, so that both are read from the cache.
    tile, column_tile = tl.swizzle2d(program // num_columns, program % num_columns, num_tiles, num_columns, 8)
    expert = tl.load(tile_expert_pointer + tile)
    if expert < 0:
        return
    row = tl.load(tile_row_pointer + tile) + tl.arange(0, tile_rows)
    row_mask = row < tl.load(ends_pointer + expert)
    pair = row
    if gather or scatter or scaled:
        pair = tl.load(order_pointer + row, mask=row_mask, other=0).to(tl.int32)
    source = row
    if gather:
        source = pair // top_k
    source = tl.where(row_mask, source, 0).to(tl.int64)
    column = column_tile * tile_columns + tl.arange(0, tile_columns)
    column_mask = column < width
    inner = tl.arange(0, tile_depth)
    row_address = rows_pointer + source[:, None] * row_stride + inner[None, :] * row_depth_stride
    weight_address = (
        weights_pointer
        + expert.to(tl.int64) * expert_stride
        + inner[:, None] * weight_depth_stride
        + column[None, :] * weight_column_stride
    )
    total = tl.zeros((tile_rows, tile_columns), dtype=tl.float32)
    for start in range(0, depth, tile_depth):
        if whole_depth:
            row_block = tl.load(row_address)
            if whole_width:
                weight_block = tl.load(weight_address)
            else:
                weight_block = tl.load(weight_address, mask=column_mask[None, :], other=0.0)
        else:
            inner_mask = inner < depth - start
            row_block = tl.load(row_address, mask=inner_mask[None, :], other=0.0)
            weight_block = tl.load(weight_address, mask=inner_mask[:, None] & column_mask[None, :], other=0.0)
        total = tl.dot(row_block, weight_block, total, input_precision=precision)
        row_address += tile_depth * row_depth_stride
        weight_address += tile_depth * weight_depth_stride
    if scaled:
        total *= tl.load(scale_pointer + pair, mask=row_mask, other=0.0).to(tl.float32)[:, None]
    target = row
    if scatter:
        target = pair
    product_address = (
        products_pointer + target.to(tl.int64)[:, None] * product_stride + column[None, :] * product_column_stride
    )
    tl.store(
        product_address,
        total.to(products_pointer.dtype.element_ty),
        mask=row_mask[:, None] & column_mask[None, :],
    )


@triton.jit
def _grouped_weight_gradient(
    gradients_pointer,
    rows_pointer,
    weight_gradient_pointer,
    order_pointer,
    ends_pointer,
    depth,
    width,
    gradient_stride,
    gradient_column_stride,
    row_stride,
    row_column_stride,
    expert_stride,
    weight_depth_stride,
    weight_column_stride,
    top_k: tl.constexpr,
    gather_gradients: tl.constexpr,
    gather_rows: tl.constexpr,
    whole_outputs: tl.constexpr,
    whole_inputs: tl.constexpr,
    precision: tl.constexpr,
    tile_inputs: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_rows: tl.constexpr,
):
    num_input_tiles = tl.cdiv(depth, tile_inputs)
    num_output_tiles = tl.cdiv(width, tile_outputs)
    tiles_per_expert = num_input_tiles * num_output_tiles
    expert = tl.program_id(0) // tiles_per_expert
    tile = tl.program_id(0) % tiles_per_expert
    output_tile, input_tile = tl.swizzle2d(
        tile // num_input_tiles, tile % num_input_tiles, num_output_tiles, num_input_tiles, 8
    )
    end = tl.load(ends_pointer + expert)
    start = tl.load(ends_pointer + expert - 1, mask=expert > 0, other=0)
    inputs = input_tile * tile_inputs + tl.arange(0, tile_inputs)
    outputs = output_tile * tile_outputs + tl.arange(0, tile_outputs)
    input_mask = inputs < depth
    output_mask = outputs < width
    total = tl.zeros((tile_outputs, tile_inputs), dtype=tl.float32)
    for first in range(start, end, tile_rows):
        row = first + tl.arange(0, tile_rows)
        row_mask = row < end
        token = row
        if gather_gradients or gather_rows:
            token = tl.load(order_pointer + row, mask=row_mask, other=0).to(tl.int32) // top_k
        gradient_row = row
        if gather_gradients:
            gradient_row = token
        source_row = row
        if gather_rows:
            source_row = token
        gradient_mask = row_mask[:, None]
        if not whole_outputs:
            gradient_mask &= output_mask[None, :]
        source_mask = row_mask[:, None]
        if not whole_inputs:
            source_mask &= input_mask[None, :]
        gradient_block = tl.load(
            gradients_pointer
            + gradient_row.to(tl.int64)[:, None] * gradient_stride
            + outputs[None, :] * gradient_column_stride,
            mask=gradient_mask,
            other=0.0,
        )
        row_block = tl.load(
            rows_pointer + source_row.to(tl.int64)[:, None] * row_stride + inputs[None, :] * row_column_stride,
            mask=source_mask,
            other=0.0,
        )
        total = tl.dot(tl.trans(gradient_block), row_block, total, input_precision=precision)
    address = (
        weight_gradient_pointer
        + expert.to(tl.int64) * expert_stride
        + outputs[:, None] * weight_column_stride
        + inputs[None, :] * weight_depth_stride
    )
    tl.store(
        address,
        total.to(weight_gradient_pointer.dtype.element_ty),
        mask=output_mask[:, None] & input_mask[None, :],
    )


@triton.jit
def _weigh_rows(
    gradients_pointer,
    rows_pointer,
    weighted_pointer,
    scale_pointer,
    scale_gradient_pointer,
    order_pointer,
    ends_pointer,
    num_experts,
    width,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    if row >= tl.load(ends_pointer + num_experts - 1):
        return
    pair = tl.load(order_pointer + row)
    scale = tl.load(scale_pointer + pair).to(tl.float32)
    start = row.to(tl.int64) * width
    product = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, width, block):
        column = first + tl.arange(0, block)
        mask = column < width
        gradient = tl.load(gradients_pointer + start + column, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(rows_pointer + start + column, mask=mask, other=0.0).to(tl.float32)
        product += gradient * value
        tl.store(
            gradients_pointer + start + column, (gradient * scale).to(gradients_pointer.dtype.element_ty), mask=mask
        )
        tl.store(weighted_pointer + start + column, (value * scale).to(weighted_pointer.dtype.element_ty), mask=mask)
    tl.store(scale_gradient_pointer + pair, tl.sum(product, 0).to(scale_gradient_pointer.dtype.element_ty))


@triton.jit
def _gate_and_up(projected_pointer, activated_pointer, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    gate = tl.load(projected_pointer + row * 2 * width + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(projected_pointer + row * 2 * width + width + column, mask=mask, other=0.0).to(tl.float32)
    activated = gate * tl.sigmoid(gate) * up
    tl.store(activated_pointer + row * width + column, activated.to(activated_pointer.dtype.element_ty), mask=mask)


@triton.jit
def _gate_and_up_backward(gradient_pointer, projected_pointer, result_pointer, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    gate = tl.load(projected_pointer + row * 2 * width + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(projected_pointer + row * 2 * width + width + column, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_pointer + row * width + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    gate_gradient = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    up_gradient = gradient * gate * sigmoid
    element = result_pointer.dtype.element_ty
    tl.store(result_pointer + row * 2 * width + column, gate_gradient.to(element), mask=mask)
    tl.store(result_pointer + row * 2 * width + width + column, up_gradient.to(element), mask=mask)
