/* Runs of pixels in shared memory (sm_90). Different taps of a window read the same run at
 * different offsets.
 *
 * The pixels and pads of all images are one sequence of places. A row has `pitch` places, and an
 * image has `image_places` places. Zeros are copied to the places of pads. The pads at the right of
 * a row are also the left pads of the next row. The place of an output is the place of its window's
 * first pixel. The distance from this place to the place of a tap's input is therefore the same for
 * all outputs. With stride 1 and dilation 1, the distance is r * pitch + s places for tap (r, s).
 * Places without an output are computed like the other places, but not stored.
 *
 * With stride 2, the taps of even rows and the taps of odd rows read different pixels. In general,
 * two taps read the same pixels if their rows are equal modulo remainders_h and their columns are
 * equal modulo remainders_w. The pixels of successive places are a stride apart. Which pixel a
 * place stands for depends on the pair of remainders: the first place is the pixel that the first
 * tap with these remainders reads for the first output.
 *
 * A run is the places that the taps of one pair of remainders read for a tile, in SLICE input
 * channels. These are the places of the tile and the `halo` places after the tile. Runs are copied
 * to RUN_SLOTS slots in turn: first the runs of one slice for all pairs of remainders, then the
 * runs of the next slice.
 *
 * A place of a run has CHUNKS chunks of 8 channels. Each chunk is a piece of 16 bytes. With 8
 * chunks, a place is a line of mma/lines.h. With fewer chunks, the pieces of one chunk of all
 * places lie side by side. The next chunk begins an odd number of pieces later, so that the chunks
 * of a place are in different banks. */

#pragma once

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#ifndef SLICE
#define SLICE 64 /* input channels that are copied at once */
#endif
#define RUN_SLOTS 2 /* slots for runs */
#ifndef WARPGROUPS
#define WARPGROUPS 2 /* warpgroups that multiply */
#endif
#ifndef COPIER_REGISTERS
#define COPIER_REGISTERS 56 /* registers of a work-item that copies */
#endif
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/wgmma.h"
#include "mma/lines.h"
#include "mma/ring.h"

#define CHUNKS (SLICE / 8)
#define LINES (CHUNKS == 8) /* whether a place is a line of 128 bytes */
#define COPY_WARPS 3        /* warps that copy runs */
#define WORK_GROUP_SIZE (128 * (WARPGROUPS + 1)) /* WARPGROUPS multiply, and one copies */
#define LINE_STEP (64 * COPY_WARPS / CHUNKS) /* places that the copy warps copy at once */

/* GEOMETRY_PARAMETERS: the kernel parameters that describe places. GEOMETRY: the initialiser of a
 * Geometry with the values of these parameters. */
#define GEOMETRY_PARAMETERS                                                                     \
    int places, DIVISOR(image_places), DIVISOR(pitch), int halo, int run_pieces, int run_bytes, \
        int channels, int height, int width, int out_height, int out_width, int pad_top,        \
        int pad_left, int stride_h, int stride_w, int dilation_h, int dilation_w,               \
        int remainders_h, int remainders_w, int x_image, int x_row, int x_column, int x_first,  \
        int y_first, int y_channels
#define GEOMETRY                                                                                  \
    {places, image_places, image_places_multiplier, image_places_shift, pitch, pitch_multiplier,  \
     pitch_shift, halo, run_pieces, run_bytes, channels, height, width, out_height, out_width,    \
     pad_top, pad_left, stride_h, stride_w, dilation_h, dilation_w, remainders_h, remainders_w,   \
     x_image, x_row, x_column, x_first, y_first, y_channels}

/* The sizes of places, runs and tensors.
 * places: number of places of all images.
 * run_pieces: pieces from one chunk of a run to the next.
 * run_bytes: bytes of a slot.
 * x_image, x_row, x_column: elements of x from one image, row or column to the next.
 * x_first, y_first: offsets of x and of y in their buffers, in elements.
 * y_channels: elements of y from one pixel to the next. */
struct Geometry {
    int places, image_places, image_places_multiplier, image_places_shift;
    int pitch, pitch_multiplier, pitch_shift;
    int halo, run_pieces, run_bytes, channels, height, width, out_height, out_width;
    int pad_top, pad_left, stride_h, stride_w, dilation_h, dilation_w;
    int remainders_h, remainders_w;
    int x_image, x_row, x_column, x_first, y_first, y_channels;
};

/* Copies the runs of all tiles for all slices. The tiles begin at place `first` and end before
 * place `last`.
 * copier: the work-item's number among the work-items of the COPY_WARPS warps.
 * runs: address of the first slot in shared memory.
 * ring: the slots. */
[[maybe_unused]] INLINE void copy_runs(const HALF *x, const Geometry &its, int copier,
                                       int first, int last, int tile_places, int slices, uint runs,
                                       Ring<RUN_SLOTS> ring)
{
    /* Here a line is a place of the run. A work-item copies two chunks of a line at a time. Lines
     * that are 4 apart have their pieces in different banks, so work-items whose numbers are
     * adjacent copy such lines. */
    int chunk = copier % (CHUNKS / 2), number = copier / (CHUNKS / 2);
    int first_line = number / 8 * 8 + number % 2 * 4 + number % 8 / 2;
    int to_upper = LINES ? 64 : CHUNKS / 2 * its.run_pieces * 16;
    uint first_to = LINES ? piece_offset(first_line, chunk)
                          : (chunk * its.run_pieces + first_line) << 4;
    /* A step of LINE_STEP places is step_images images, step_rows rows and step_columns columns of
     * pixels. In x, this step is step_from elements. */
    int image_rows = (int)QUOTIENT(its.image_places, its.pitch) * its.stride_h;
    int row_columns = its.pitch * its.stride_w;
    int step_images = (int)QUOTIENT(LINE_STEP, its.image_places);
    int step_places = LINE_STEP - step_images * its.image_places;
    int step_rows = (int)QUOTIENT(step_places, its.pitch);
    int step_columns = (step_places - step_rows * its.pitch) * its.stride_w;
    step_rows *= its.stride_h;
    int step_from = step_images * its.x_image + step_rows * its.x_row + step_columns * its.x_column;
    int next_row = its.stride_h * its.x_row - row_columns * its.x_column;
    for (int tile = first; tile < last; tile += tile_places) {
        int lines = (last - tile < tile_places ? last - tile : tile_places) + its.halo;
        int lines_inside = its.places - tile, first_place = tile + first_line;
        int first_image = (int)QUOTIENT(first_place, its.image_places);
        int in_image = first_place - first_image * its.image_places;
        int first_row = (int)QUOTIENT(in_image, its.pitch);
        int first_column = (in_image - first_row * its.pitch) * its.stride_w - its.pad_left;
        first_row = first_row * its.stride_h - its.pad_top;
        int first_from = its.x_first + first_image * its.x_image + first_row * its.x_row
                         + first_column * its.x_column;
        for (int slice = 0; slice < slices; slice++) {
            int channel = slice * SLICE + chunk * 8;
            int end = channel < its.channels ? lines_inside : 0;
            bool has_upper = channel + CHUNKS / 2 * 8 < its.channels;
            for (int tap_row = 0; tap_row < its.remainders_h; tap_row++) {
                int down = tap_row * its.dilation_h, row_end = image_rows - its.pad_top + down;
                for (int tap_column = 0; tap_column < its.remainders_w; tap_column++) {
                    int right = tap_column * its.dilation_w;
                    int column_end = row_columns - its.pad_left + right;
                    producer_acquire(ring);
                    uint to = runs + ring.slot * its.run_bytes + first_to;
                    int row = first_row + down, column = first_column + right;
                    int from = first_from + channel + down * its.x_row + right * its.x_column;
                    UNROLL_BY(2) for (int line = first_line; line < lines; line += LINE_STEP) {
                        bool inside = (uint)row < (uint)its.height
                                      && (uint)column < (uint)its.width && line < end;
                        const HALF *source = x + (uint)(inside ? from : 0);
                        cp_async_16(to, source, inside ? 16 : 0);
                        cp_async_16(LINES ? to ^ to_upper : to + to_upper, source + CHUNKS / 2 * 8,
                                    inside && has_upper ? 16 : 0);
                        to += LINE_STEP * (LINES ? LINE : 16);
                        column += step_columns;
                        row += step_rows;
                        from += step_from;
                        if (column >= column_end) {
                            column -= row_columns;
                            row += its.stride_h;
                            from += next_row;
                        }
                        if (row >= row_end) {
                            row -= image_rows;
                            from += its.x_image - image_rows * its.x_row;
                        }
                    }
                    cp_async_mbarrier_arrive(filled_barrier(ring));
                    advance(ring);
                }
            }
        }
    }
}

/* Returns the index in y of the first channel of a place's output, or -1 if the place has no
 * output. */
[[maybe_unused]] INLINE int output_index(const Geometry &its, int place)
{
    int image = (int)QUOTIENT(place, its.image_places);
    int in_image = place - image * its.image_places;
    int row = (int)QUOTIENT(in_image, its.pitch), column = in_image - row * its.pitch;
    bool stored = place < its.places && row < its.out_height && column < its.out_width;
    int pixel = (image * its.out_height + row) * its.out_width + column;
    return stored ? its.y_first + pixel * its.y_channels : -1;
}

/* Initialises the barriers of both rings. readers: number of arrivals that release the slot of a
 * stage. */
template <class Stages>
INLINE void init_rings(const Ring<RUN_SLOTS> &run_ring, const Stages &stage_ring, int readers)
{
    if (LOCAL_ID(0) == 0) {
        init_ring(run_ring, 32 * COPY_WARPS, 4 * WARPGROUPS);
        init_ring(stage_ring, 1, readers);
        fence_mbarrier_init();
    }
    BARRIER();
}

/* Copies the operands of a work-group. The warps after those that multiply call this function. The
 * first of these warps calls copy_stages before the previous kernel has ended, because copy_stages
 * reads only weights. The other warps call copy_runs. */
template <class CopyStages>
INLINE void copy_operands(uint warp, CopyStages copy_stages, const HALF *x,
                          const Geometry &geometry, int first, int last, int tile_places,
                          int slices, uint runs, const Ring<RUN_SLOTS> &ring)
{
    setmaxnreg_dec<COPIER_REGISTERS>();
    if (warp == 4 * WARPGROUPS && LOCAL_ID(0) % 32 == 0)
        copy_stages();
    pdl_wait();
    if (warp > 4 * WARPGROUPS)
        copy_runs(x, geometry, LOCAL_ID(0) - 32 * (4 * WARPGROUPS + 1), first, last, tile_places,
                  slices, runs, ring);
}
