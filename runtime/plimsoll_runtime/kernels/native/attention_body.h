// Attention of a block over one chunk; included once per instruction set (see layer_operations.h).
//
// Keys and values are codes of 8 bits, and so that all products are integers, queries and weights become numbers of 16
// bits: a query once per group of dimensions, the weights of a chunk once per query and group of values, since they take
// the scales of the values with them. Scores: a tile of QUERIES x PAGES, a group of dimensions after the other. Values: a
// tile of QUERIES x registers of the head, pair of tokens after pair. Tokens that a query does not see weigh 0.
// What is rounded for a query depends on what that query sees, and on nothing else of its block.

#define UNROLLED _Pragma("GCC unroll 16")  // wholly, or else the sums of a tile would live in memory

constexpr int FETCH_LEVEL = 2;  // into the second-level cache
constexpr int LINE_BYTES = 64;
constexpr int PAGE_VECTORS = PAGE_TOKENS / WIDTH;
constexpr int PAIR_CODES = 2 * PAGE_TOKENS;  // keys of two dimensions in a page
constexpr int MAX_GROUPS = MAX_HEAD_DIM / CODE_GROUP;
constexpr float LEAST_WEIGHT = 1e-20f;  // less is nothing, and products with it would be slow: too small for a float
constexpr float LARGEST_WORD = 32767.0f;  // a group of 32 keys, and a chunk of 256 values, stay below 2^31

struct ChunkView {
    int first_page;  // the first and the last page, of the chunk's, in which any query of the block sees a token
    int last_page;
    int64_t first;  // the first and the last of those tokens, counted in the context
    int64_t last;
    const int32_t* pages;  // of the chunk
    const int32_t* next_pages;  // what is attended next, and how many pages of it there are
    int num_next_pages;
    float* scores;  // [queries][CHUNK_TOKENS], counted from the start of the chunk
    const int16_t* queries;  // [queries][head_dim]
    const float* query_scales;  // [queries][MAX_GROUPS]
};

// What follows in memory is not what follows in the context, so the processor cannot guess it. It is asked ahead, a line
// at a time between the computations, since many at once would stand in the way of the loads that are waited for: while
// scores are made, for the values of the same tokens; while values are summed, for the keys of what is attended next.
// The first queries of a block ask for all.
static inline void fetch(const code* from, int num_codes) {
    for (int at = 0; at < num_codes; at += LINE_BYTES) __builtin_prefetch(from + at, 0, FETCH_LEVEL);
}

static inline const code* page_of(const AttendBlock& block, const void* cache, int32_t page) {
    return static_cast<const code*>(cache) + page * block.page_stride;
}

// Of one group of dimensions in a page: one for each token.
static inline const half* scales_of(const AttendBlock& block, const code* page, int group) {
    return reinterpret_cast<const half*>(page + block.head_dim * PAGE_TOKENS) + group * PAGE_TOKENS;
}

static inline int num_groups_of(const AttendBlock& block) { return (block.head_dim + CODE_GROUP - 1) / CODE_GROUP; }

// Numbers times `factor`, which leaves none above LARGEST_WORD; a multiple of WIDTH of them.
static inline void round_words(const float* numbers, int size, float factor, int16_t* words) {
    for (int at = 0; at < size; at += WIDTH) store_words(words + at, rounded(load(numbers + at) * factor));
}

static inline int32_t pair_at(const int16_t* words) {
    int32_t pair;
    std::memcpy(&pair, words, sizeof pair);
    return pair;
}

// What one group, DIMENSIONS from `start` on, adds to the scores of a tile; the first group begins them.
template <int QUERIES, int PAGES, int DIMENSIONS>
static inline void score_group(const AttendBlock& block, const code* const* keys, const code* const* fetched,
                               const int16_t* queries, const float* query_scales, int start, float* scores) {
    constexpr int VECTORS = PAGES * PAGE_VECTORS;
    Sums sums[QUERIES][VECTORS] = {};
    UNROLLED for (int d = 0; d < DIMENSIONS; d += 2) {
        if (fetched != nullptr && d % (LINE_BYTES / PAGE_TOKENS) == 0)
            UNROLLED for (int p = 0; p < PAGES; p++) fetch(fetched[p] + (start + d) * PAGE_TOKENS, 1);
        words key[VECTORS];
        UNROLLED for (int v = 0; v < VECTORS; v++)
            key[v] = widen(keys[v / PAGE_VECTORS] + (start + d) * PAGE_TOKENS + v % PAGE_VECTORS * 2 * WIDTH);
        UNROLLED for (int q = 0; q < QUERIES; q++) {
            const int32_t pair = pair_at(queries + q * block.head_dim + start + d);
            UNROLLED for (int v = 0; v < VECTORS; v++) sums[q][v] = dot(sums[q][v], key[v], pair);
        }
    }
    UNROLLED for (int v = 0; v < VECTORS; v++) {
        const half* scales = scales_of(block, keys[v / PAGE_VECTORS], start / CODE_GROUP);
        const vec scale = load(scales + v % PAGE_VECTORS * WIDTH);
        UNROLLED for (int q = 0; q < QUERIES; q++) {
            float* to = scores + q * CHUNK_TOKENS + v * WIDTH;
            const vec before = start == 0 ? vec{} : load(to);
            store(to, numbers(sums[q][v]) * (scale * query_scales[q * MAX_GROUPS + start / CODE_GROUP]) + before);
        }
    }
}

template <int QUERIES, int PAGES>
static inline void score_tile(const AttendBlock& block, const ChunkView& view, int query, int page) {
    const code *keys[PAGES], *values[PAGES];
    for (int p = 0; p < PAGES; p++) {
        keys[p] = page_of(block, block.keys, view.pages[page + p]);
        values[p] = page_of(block, block.values, view.pages[page + p]);
        if (query == 0) fetch(reinterpret_cast<const code*>(scales_of(block, values[p], 0)), 1);
    }
    const code* const* fetched = query == 0 ? values : nullptr;
    const int16_t* queries = view.queries + query * block.head_dim;
    const float* query_scales = view.query_scales + query * MAX_GROUPS;
    float* scores = view.scores + query * CHUNK_TOKENS + page * PAGE_TOKENS;
    int start = 0;
    for (; start + CODE_GROUP <= block.head_dim; start += CODE_GROUP)
        score_group<QUERIES, PAGES, CODE_GROUP>(block, keys, fetched, queries, query_scales, start, scores);
    if (start < block.head_dim)
        score_group<QUERIES, PAGES, CODE_GROUP / 2>(block, keys, fetched, queries, query_scales, start, scores);
}

template <int QUERIES>
static void score_queries(const AttendBlock& block, const ChunkView& view, int query) {
    int page = view.first_page;
    for (; page + SCORE_PAGES <= view.last_page + 1; page += SCORE_PAGES)
        score_tile<QUERIES, SCORE_PAGES>(block, view, query, page);
    for (; page <= view.last_page; page++) score_tile<QUERIES, 1>(block, view, query, page);
}

// One query's weights times the scales of one group of values, as words; gives what a word of 1 stands for.
static float scale_weights(const AttendBlock& block, const ChunkView& view, const float* weights, int group,
                           int16_t* scaled) {
    alignas(64) float products[CHUNK_TOKENS];
    vec largest = {};
    for (int page = view.first_page; page <= view.last_page; page++) {
        const half* scales = scales_of(block, page_of(block, block.values, view.pages[page]), group);
        for (int at = 0; at < PAGE_TOKENS; at += WIDTH) {
            const vec weight = load(weights + page * PAGE_TOKENS + at);
            // What stands for a token that was never written may be no number.
            const vec product = weight > LEAST_WEIGHT ? weight * load(scales + at) : vec{};
            store(products + page * PAGE_TOKENS + at, product);
            largest = larger(product, largest);
        }
    }
    const int start = view.first_page * PAGE_TOKENS;
    const float most = largest_lane(largest);
    const int size = (view.last_page + 1) * PAGE_TOKENS - start;
    round_words(products + start, size, most > 0 ? LARGEST_WORD / most : 0, scaled + start);
    return most / LARGEST_WORD;
}

// `weights`: [QUERIES][MAX_GROUPS][CHUNK_TOKENS] and `steps`: [QUERIES][MAX_GROUPS], of which this reads GROUPS from
// `group` on.
template <int QUERIES, int GROUPS, int VECTORS>
static inline void sum_tile(const AttendBlock& block, const ChunkView& view, bool fetches, int group,
                            const int16_t* weights, const float* steps, Partial* to) {
    const int dimension = group * CODE_GROUP;
    Sums sums[QUERIES][GROUPS][VECTORS] = {};
    for (int page = view.first_page; page <= view.last_page; page++) {
        const int next_page = page < view.num_next_pages ? page : view.num_next_pages - 1;
        const code* values = page_of(block, block.values, view.pages[page]) + 2 * dimension;
        const code* next = page_of(block, block.next_keys, view.next_pages[next_page]) + 2 * dimension;
        for (int token = 0; token < PAGE_TOKENS; token += 2, values += 2 * block.head_dim, next += 2 * block.head_dim) {
            if (fetches) fetch(next, 2 * GROUPS * VECTORS * WIDTH);
            words value[GROUPS][VECTORS];
            for (int g = 0; g < GROUPS; g++)
                for (int v = 0; v < VECTORS; v++) value[g][v] = widen(values + 2 * (g * CODE_GROUP + v * WIDTH));
            for (int q = 0; q < QUERIES; q++)
                for (int g = 0; g < GROUPS; g++) {
                    const int16_t* from = weights + (q * MAX_GROUPS + group + g) * CHUNK_TOKENS;
                    const int32_t pair = pair_at(from + page * PAGE_TOKENS + token);
                    for (int v = 0; v < VECTORS; v++) sums[q][g][v] = dot(sums[q][g][v], value[g][v], pair);
                }
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int g = 0; g < GROUPS; g++)
            for (int v = 0; v < VECTORS; v++)
                store(to[q].values + dimension + g * CODE_GROUP + v * WIDTH,
                      numbers(sums[q][g][v]) * steps[q * MAX_GROUPS + group + g]);
}

template <int QUERIES>
static void sum_queries(const AttendBlock& block, const ChunkView& view, int query, Partial* to) {
    constexpr int WHOLE = CODE_GROUP / WIDTH, HALF = WHOLE / 2;  // registers of a group; the last one may be half
    alignas(64) int16_t weights[QUERIES * MAX_GROUPS * CHUNK_TOKENS];
    float steps[QUERIES * MAX_GROUPS];
    for (int q = 0; q < QUERIES; q++)
        for (int group = 0; group < num_groups_of(block); group++)
            steps[q * MAX_GROUPS + group] = scale_weights(block, view, view.scores + (query + q) * CHUNK_TOKENS, group,
                                                          weights + (q * MAX_GROUPS + group) * CHUNK_TOKENS);
    int group = 0;
    const int num_whole = block.head_dim / CODE_GROUP;
    for (; group + VALUE_GROUPS <= num_whole; group += VALUE_GROUPS)
        sum_tile<QUERIES, VALUE_GROUPS, WHOLE>(block, view, query == 0, group, weights, steps, to + query);
    for (; group < num_whole; group++)
        sum_tile<QUERIES, 1, WHOLE>(block, view, query == 0, group, weights, steps, to + query);
    if (group < num_groups_of(block))
        sum_tile<QUERIES, 1, HALF>(block, view, query == 0, group, weights, steps, to + query);
}

// Turns one query's scores into weights; tokens before `first` or after `last` (both in the chunk) weigh 0.
static void weigh(float* scores, int from_page, int to_page, int first, int last, Partial& to) {
    ivec lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    const int start = from_page * PAGE_TOKENS, stop = to_page * PAGE_TOKENS;
    vec largest = spread(-INFINITY);
    for (int at = start; at < stop; at += WIDTH) {
        const ivec place = lane + at;
        vec score = load(scores + at);
        score = (place >= first) & (place <= last) ? score : spread(-INFINITY);
        store(scores + at, score);
        largest = larger(score, largest);
    }
    to.largest = largest_lane(largest);
    vec sum = {};
    for (int at = start; at < stop; at += WIDTH) {
        const vec weight = exponential(load(scores + at) - to.largest);
        store(scores + at, weight);
        sum += weight;
    }
    to.sum = sum_lanes(sum);
}

static void clear(float* scores, int from_page, int to_page, Partial& to) {
    std::memset(scores + from_page * PAGE_TOKENS, 0, sizeof(float) * (to_page - from_page) * PAGE_TOKENS);
    to.largest = -INFINITY;
    to.sum = 0;
}

static int64_t first_seen(const AttendBlock& block, int64_t position) {
    return block.window == 0 || position < block.window ? 0 : position - block.window + 1;
}

static void weigh_block(const AttendBlock& block, const ChunkView& view, int64_t chunk_start, Partial* partials) {
    const int from_page = view.first_page, to_page = view.last_page + 1;
    for (int token = 0; token < block.num_tokens; token++) {
        const int64_t position = block.first_position + token, seen = first_seen(block, position);
        const int first = static_cast<int>((seen > view.first ? seen : view.first) - chunk_start);
        const int last = static_cast<int>((position < view.last ? position : view.last) - chunk_start);
        for (int head = 0; head < block.num_heads; head++) {
            const int query = token * block.num_heads + head;
            float* scores = view.scores + query * CHUNK_TOKENS;
            if (first > last) {
                clear(scores, from_page, to_page, partials[query]);
            } else {
                weigh(scores, from_page, to_page, first, last, partials[query]);
            }
        }
    }
}

template <int QUERIES>
static void score_and_rest(const AttendBlock& block, const ChunkView& view, int query, int num_queries) {
    if constexpr (QUERIES > 0) {
        for (; query + QUERIES <= num_queries; query += QUERIES) score_queries<QUERIES>(block, view, query);
        score_and_rest<QUERIES - 1>(block, view, query, num_queries);
    }
}

template <int QUERIES>
static void sum_and_rest(const AttendBlock& block, const ChunkView& view, int query, int num_queries, Partial* to) {
    if constexpr (QUERIES > 0) {
        for (; query + QUERIES <= num_queries; query += QUERIES) sum_queries<QUERIES>(block, view, query, to);
        sum_and_rest<QUERIES - 1>(block, view, query, num_queries, to);
    }
}

static void round_query(const AttendBlock& block, const float* query, int16_t* words, float* scales) {
    for (int group = 0, start = 0; start < block.head_dim; group++, start += CODE_GROUP) {
        const int size = block.head_dim - start < CODE_GROUP ? block.head_dim - start : CODE_GROUP;
        const float most = largest_magnitude(query + start, size);
        round_words(query + start, size, most > 0 ? LARGEST_WORD / most : 0, words + start);
        scales[group] = most / LARGEST_WORD * block.scale;
    }
}

static void attend_chunk(const AttendBlock& block, int64_t chunk, Partial* partials) {
    constexpr int CHUNK_PAGES = CHUNK_TOKENS / PAGE_TOKENS;
    alignas(64) float scores[MAX_BLOCK_QUERIES * CHUNK_TOKENS];
    alignas(64) int16_t queries[MAX_BLOCK_QUERIES * MAX_HEAD_DIM];
    float query_scales[MAX_BLOCK_QUERIES * MAX_GROUPS];
    for (int token = 0; token < block.num_tokens; token++)
        for (int head = 0; head < block.num_heads; head++) {
            const int query = token * block.num_heads + head;
            round_query(block, block.query + token * block.query_stride + head * block.head_dim,
                        queries + query * block.head_dim, query_scales + query * MAX_GROUPS);
        }
    const int64_t start = chunk * CHUNK_TOKENS, stop = start + CHUNK_TOKENS;
    const int64_t seen = first_seen(block, block.first_position);
    const int64_t last_seen = block.first_position + block.num_tokens - 1;
    const int64_t first = seen > start ? seen : start, last = last_seen < stop ? last_seen : stop - 1;
    const int64_t num_pages = last_seen / PAGE_TOKENS + 1, next_page = block.next_chunk * CHUNK_PAGES;
    const int64_t from_page = next_page < num_pages ? next_page : num_pages - 1;
    const ChunkView view{static_cast<int>((first - start) / PAGE_TOKENS),
                         static_cast<int>((last - start) / PAGE_TOKENS),
                         first,
                         last,
                         block.pages + chunk * CHUNK_PAGES,
                         block.pages + from_page,
                         static_cast<int>(num_pages - from_page),
                         scores,
                         queries,
                         query_scales};
    const int num_queries = block.num_tokens * block.num_heads;
    score_and_rest<TILE_QUERIES>(block, view, 0, num_queries);
    weigh_block(block, view, start, partials);
    sum_and_rest<TILE_QUERIES>(block, view, 0, num_queries, partials);
}

static void merge(Partial& total, const Partial& next, int head_dim) {
    if (next.largest == -INFINITY) return;
    const float largest = total.largest > next.largest ? total.largest : next.largest;
    const float keep = exponential(spread(total.largest - largest))[0];
    const float take = exponential(spread(next.largest - largest))[0];
    for (int d = 0; d < head_dim; d += WIDTH)
        store(total.values + d, load(total.values + d) * keep + load(next.values + d) * take);
    total.sum = total.sum * keep + next.sum * take;
    total.largest = largest;
}

static void finish(const Partial& total, int head_dim, float* output) {
    for (int d = 0; d < head_dim; d += WIDTH) store(output + d, load(total.values + d) / total.sum);
}
