/*
 * draw-digits.c: draws digits that look written by hand, for machines without a network.
 *
 *     draw-digits COUNT SEED > digits.csv
 *
 * Each line is 64 grey values from 0 to 16, row by row, and then the digit: the layout of the UCI
 * handwritten digits, which were made the same way, by counting the dark pixels in each 4 x 4 block
 * of a 32 x 32 bitmap. A digit is a few strokes, smooth curves through given points; every drawing
 * moves the points, turns, slants, stretches and shifts them, and takes a pen of random width that
 * shakes a little. The same seed gives the same file, and the first lines do not depend on COUNT.
 */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BITMAP 32
#define BLOCK 4
#define GRID (BITMAP / BLOCK)
#define MAX_POINTS 12
#define MAX_SEGMENTS 256
#define STEPS 6 /* straight pieces between two points of a curve */

typedef struct point {
    double x, y;
} point;

/*
 * One way to write a digit: strokes, divided by a bar, of points "across,down" in hundredths of a
 * box, from the top left. The curve goes through all points; one given twice makes a corner.
 */
typedef struct glyph {
    int digit;
    const char *strokes;
} glyph;

static const glyph glyphs[] = {
    {0, "50,0 15,15 2,50 15,85 50,100 85,85 98,50 85,15 50,0"},
    {0, "70,5 35,8 10,40 15,85 45,100 80,80 95,35 75,5 50,2"},
    {1, "50,0 50,100"},
    {1, "25,25 55,0 55,0 55,100"},
    {1, "25,25 50,0 50,0 50,100 | 20,100 80,100"},
    {2, "8,25 30,2 70,2 88,28 55,65 5,100 5,100 95,100"},
    {2, "10,20 40,0 80,15 75,50 35,90 10,95 12,78 35,80 65,98 95,90"},
    {3, "10,10 50,0 85,20 40,47 40,47 90,70 70,97 30,100 5,88"},
    {3, "10,0 85,0 85,0 42,40 42,40 88,60 80,93 40,100 5,88"},
    {4, "60,0 5,65 5,65 50,66 98,65 | 70,35 70,100"},
    {4, "15,0 10,45 10,45 85,50 | 80,0 75,100"},
    {5, "20,0 15,42 15,42 60,38 92,65 70,97 8,95 | 20,0 90,0"},
    {5, "90,2 25,2 25,2 15,45 15,45 55,38 90,60 80,90 45,100 5,88"},
    {6, "75,0 30,25 8,65 30,98 75,95 88,68 60,50 25,58 12,78"},
    {6, "40,0 12,45 12,85 50,100 88,82 75,55 35,55 12,75"},
    {7, "5,3 95,3 95,3 60,50 40,100"},
    {7, "8,5 92,2 92,2 60,45 35,100 | 25,50 85,48"},
    {8, "80,15 50,0 15,18 35,42 75,60 85,85 50,100 12,82 30,55 75,35 80,15"},
    {8, "50,0 20,12 25,40 50,47 78,38 80,12 50,0 | 50,47 12,65 18,93 50,100 85,92 88,65 50,47"},
    {9, "85,20 50,0 12,20 25,48 65,48 87,20 87,20 85,60 65,90 25,100"},
    {9, "80,15 45,0 12,22 20,48 55,52 82,30 80,15 | 82,10 75,100"},
};
#define GLYPHS (sizeof(glyphs) / sizeof(glyphs[0]))

typedef struct drawing {
    int segment_count;
    point from[MAX_SEGMENTS];
    point to[MAX_SEGMENTS];
} drawing;

/* A hand: how it turns, slants, stretches and shifts what it writes, and its pen. */
typedef struct hand {
    double xx, xy, yx, yy; /* the box's middle is the origin; the result is in pixels */
    double shift_x, shift_y;
    double wobble; /* of each point, in the box */
    double pen;    /* half the width, in pixels */
    double shake;  /* of the pen's edge, in pixels */
} hand;

static double between(tdm_rng *rng, double low, double high)
{
    return low + (high - low) * (double)tdm_rng_uniform(rng);
}

static hand choose_hand(tdm_rng *rng)
{
    double turn = 0.11 * tdm_rng_normal(rng);
    double slant = 0.08 + 0.18 * tdm_rng_normal(rng);
    double width = between(rng, 13.0, 23.0);
    double height = between(rng, 22.0, 28.0);
    hand h = {
        .xx = cos(turn) * width,
        .xy = (-sin(turn) - cos(turn) * slant) * height,
        .yx = sin(turn) * width,
        .yy = (cos(turn) - sin(turn) * slant) * height,
        .shift_x = 1.2 * tdm_rng_normal(rng),
        .shift_y = 0.8 * tdm_rng_normal(rng),
        .wobble = between(rng, 0.015, 0.055),
        .pen = between(rng, 1.1, 2.5),
        .shake = between(rng, 0.1, 0.5),
    };
    return h;
}

static point place(const hand *h, point p, tdm_rng *rng)
{
    double x = p.x - 0.5 + h->wobble * tdm_rng_normal(rng);
    double y = p.y - 0.5 + h->wobble * tdm_rng_normal(rng);
    point placed = {BITMAP / 2.0 + h->shift_x + h->xx * x + h->xy * y,
                    BITMAP / 2.0 + h->shift_y + h->yx * x + h->yy * y};
    return placed;
}

static double curve(double a, double b, double c, double d, double t)
{
    return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t * t +
                  (3 * b - a - 3 * c + d) * t * t * t);
}

/* A Catmull-Rom curve through the points, as short straight pieces. */
static void add_stroke(drawing *d, const point *points, int count)
{
    for (int i = 0; i + 1 < count; i++) {
        point a = points[i > 0 ? i - 1 : i];
        point b = points[i];
        point c = points[i + 1];
        point e = points[i + 2 < count ? i + 2 : i + 1];
        point last = b;
        for (int step = 1; step <= STEPS && d->segment_count < MAX_SEGMENTS; step++) {
            double t = (double)step / STEPS;
            point next = {curve(a.x, b.x, c.x, e.x, t), curve(a.y, b.y, c.y, e.y, t)};
            d->from[d->segment_count] = last;
            d->to[d->segment_count++] = next;
            last = next;
        }
    }
}

static double distance_squared(point p, point from, point to)
{
    double dx = to.x - from.x;
    double dy = to.y - from.y;
    double length = dx * dx + dy * dy;
    double t = length > 0 ? ((p.x - from.x) * dx + (p.y - from.y) * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    double x = from.x + t * dx - p.x;
    double y = from.y + t * dy - p.y;
    return x * x + y * y;
}

/* Is the pixel dark? Its edge shakes, and one pixel in 400 is wrong, as on a scanner. */
static bool is_dark(const drawing *d, const hand *h, point p, tdm_rng *rng)
{
    double nearest = 1e9;
    for (int i = 0; i < d->segment_count; i++) {
        double distance = distance_squared(p, d->from[i], d->to[i]);
        if (distance < nearest) nearest = distance;
    }
    double pen = h->pen + h->shake * tdm_rng_normal(rng);
    bool dark = pen > 0 && nearest <= pen * pen;
    return dark != (tdm_rng_below(rng, 400) == 0);
}

/* Reads the points of one stroke, moved by the hand; returns where the next stroke begins. */
static const char *place_stroke(const char *text, const hand *h, tdm_rng *rng,
                                point placed[MAX_POINTS], int *out_count)
{
    int count = 0;
    point last = {-1, -1};
    while (*text && *text != '|' && count < MAX_POINTS) {
        char *end;
        point p = {(double)strtol(text, &end, 10) / 100, 0};
        p.y = (double)strtol(end + 1, &end, 10) / 100;
        bool corner = p.x == last.x && p.y == last.y;
        placed[count] = corner ? placed[count - 1] : place(h, p, rng);
        count++;
        last = p;
        text = end;
        while (*text == ' ') text++;
    }
    *out_count = count;
    return *text == '|' ? text + 1 : text;
}

static void draw(const glyph *g, tdm_rng *rng, int cells[GRID * GRID])
{
    hand h = choose_hand(rng);
    drawing d = {0};
    for (const char *text = g->strokes; *text;) {
        point placed[MAX_POINTS];
        int count;
        text = place_stroke(text, &h, rng, placed, &count);
        add_stroke(&d, placed, count);
    }
    memset(cells, 0, GRID * GRID * sizeof(*cells));
    for (int y = 0; y < BITMAP; y++)
        for (int x = 0; x < BITMAP; x++)
            cells[y / BLOCK * GRID + x / BLOCK] += is_dark(&d, &h, (point){x + 0.5, y + 0.5}, rng);
}

static const glyph *choose_glyph(int digit, tdm_rng *rng)
{
    size_t first = 0;
    while (glyphs[first].digit != digit) first++;
    size_t count = 0;
    while (first + count < GLYPHS && glyphs[first + count].digit == digit) count++;
    return &glyphs[first + tdm_rng_below(rng, count)];
}

static bool read_number(const char *text, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || value > max) return false;
    *out = value;
    return true;
}

int main(int argc, char **argv)
{
    uint64_t count;
    uint64_t seed;
    if (argc != 3 || !read_number(argv[1], 100000000, &count) ||
        !read_number(argv[2], UINT64_MAX, &seed)) {
        fprintf(stderr, "usage: draw-digits COUNT SEED > digits.csv\n"
                        "  COUNT  how many digits, up to 100000000\n"
                        "  SEED   a whole number; the same seed draws the same digits\n");
        return 2;
    }
    for (uint64_t i = 0; i < count; i++) {
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER, .step = i});
        int digit = (int)tdm_rng_below(&rng, 10);
        int cells[GRID * GRID];
        draw(choose_glyph(digit, &rng), &rng, cells);
        for (int c = 0; c < GRID * GRID; c++) printf("%d,", cells[c]);
        printf("%d\n", digit);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "draw-digits: cannot write the digits: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
