// Attention of a block over one chunk; included once per instruction set (see layer_operations.h).
//
// Scores: a tile of QUERIES x PAGES, one accumulator per query and register of a page, dimension after dimension.
// Values: a tile of QUERIES x registers of the head, token after token. Tokens that a query does not see weigh 0.

constexpr int FETCH_LEVEL = 2;  // into the second-level cache
constexpr int FETCH_DIMENSIONS = 2;  // a line of float16 keys
constexpr int PAGE_VECTORS = PAGE_TOKENS / WIDTH;

struct ChunkView {
    int64_t first;  // the first and the last token that any query of the block sees in the chunk
    int64_t last;
    int64_t first_page;  // of the chunk
    float* scores;  // [queries][CHUNK_TOKENS], counted from the start of the chunk
    const float* queries;  // [queries][head_dim], scaled
};

// What follows in memory is not what follows in the context, so the processor cannot guess it. It is asked ahead, a line
// at a time between the computations, since many at once would stand in the way of the loads that are waited for: while
// scores are made, for the values of the same tokens; while values are summed, for the keys of what is attended next.
// The first queries of a block ask for all.
template <typename Element>
static inline void fetch(const Element* from, int num_elements) {
    constexpr int LINE_ELEMENTS = 64 / sizeof(Element);
    for (int at = 0; at < num_elements; at += LINE_ELEMENTS) __builtin_prefetch(from + at, 0, FETCH_LEVEL);
}

template <typename Element>
static inline const Element* page_of(const AttendBlock& block, const void* cache, int64_t page) {
    return static_cast<const Element*>(cache) + block.pages[page] * block.page_stride;
}

// The keys that are needed after `page` of this chunk: they stand as far from the start of theirs.
template <typename Element>
static inline const Element* next_keys(const AttendBlock& block, const ChunkView& view, int64_t page) {
    const int64_t last_page = (block.first_position + block.num_tokens - 1) / PAGE_TOKENS;
    const int64_t next = block.next_chunk * (CHUNK_TOKENS / PAGE_TOKENS) + page - view.first_page;
    return page_of<Element>(block, block.next_keys, next < last_page ? next : last_page);
}

template <typename Element, int QUERIES, int PAGES>
static inline void score_tile(const AttendBlock& block, const ChunkView& view, int query, int page) {
    const Element *keys[PAGES], *values[PAGES];
    for (int p = 0; p < PAGES; p++) {
        keys[p] = page_of<Element>(block, block.keys, view.first_page + page + p);
        values[p] = page_of<Element>(block, block.values, view.first_page + page + p);
    }
    const float* queries = view.queries + query * block.head_dim;
    vec sums[QUERIES][PAGES][PAGE_VECTORS] = {};
    for (int d = 0; d < block.head_dim; d++) {
        if (query == 0 && d % FETCH_DIMENSIONS == 0)
            for (int p = 0; p < PAGES; p++) fetch(values[p] + d * PAGE_TOKENS, FETCH_DIMENSIONS * PAGE_TOKENS);
        vec key[PAGES][PAGE_VECTORS];
        for (int p = 0; p < PAGES; p++)
            for (int v = 0; v < PAGE_VECTORS; v++) key[p][v] = load(keys[p] + d * PAGE_TOKENS + v * WIDTH);
        for (int q = 0; q < QUERIES; q++)
            for (int p = 0; p < PAGES; p++)
                for (int v = 0; v < PAGE_VECTORS; v++) sums[q][p][v] += key[p][v] * queries[q * block.head_dim + d];
    }
    for (int q = 0; q < QUERIES; q++)
        for (int p = 0; p < PAGES; p++)
            for (int v = 0; v < PAGE_VECTORS; v++)
                store(view.scores + (query + q) * CHUNK_TOKENS + (page + p) * PAGE_TOKENS + v * WIDTH, sums[q][p][v]);
}

template <typename Element, int QUERIES>
static void score_queries(const AttendBlock& block, const ChunkView& view, int query) {
    const int chunk_start = static_cast<int>(view.first_page) * PAGE_TOKENS;
    int page = static_cast<int>(view.first - chunk_start) / PAGE_TOKENS;
    const int stop = static_cast<int>(view.last - chunk_start) / PAGE_TOKENS + 1;
    for (; page + SCORE_PAGES <= stop; page += SCORE_PAGES)
        score_tile<Element, QUERIES, SCORE_PAGES>(block, view, query, page);
    for (; page < stop; page++) score_tile<Element, QUERIES, 1>(block, view, query, page);
}

template <typename Element, int QUERIES, int VECTORS>
static inline void sum_values(const AttendBlock& block, const ChunkView& view, int query, int dimension, Partial* to) {
    const float* weights = view.scores + query * CHUNK_TOKENS;
    const int64_t chunk_start = view.first_page * PAGE_TOKENS;
    vec sums[QUERIES][VECTORS] = {};
    for (int64_t position = view.first; position <= view.last;) {
        const int64_t page = position / PAGE_TOKENS;
        const int64_t page_stop = (page + 1) * PAGE_TOKENS <= view.last ? (page + 1) * PAGE_TOKENS : view.last + 1;
        const int64_t start = (position - page * PAGE_TOKENS) * block.head_dim + dimension;
        const Element* values = page_of<Element>(block, block.values, page) + start;
        const Element* next = next_keys<Element>(block, view, page) + start;
        for (; position < page_stop; position++, values += block.head_dim, next += block.head_dim) {
            if (query == 0) fetch(next, VECTORS * WIDTH);
            vec value[VECTORS];
            for (int v = 0; v < VECTORS; v++) value[v] = load(values + v * WIDTH);
            for (int q = 0; q < QUERIES; q++) {
                const float weight = weights[q * CHUNK_TOKENS + (position - chunk_start)];
                for (int v = 0; v < VECTORS; v++) sums[q][v] += value[v] * weight;
            }
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECTORS; v++) store(to[query + q].values + dimension + v * WIDTH, sums[q][v]);
}

template <typename Element, int QUERIES>
static void sum_queries(const AttendBlock& block, const ChunkView& view, int query, Partial* to) {
    int d = 0;
    for (; d + VALUE_VECTORS * WIDTH <= block.head_dim; d += VALUE_VECTORS * WIDTH)
        sum_values<Element, QUERIES, VALUE_VECTORS>(block, view, query, d, to);
    for (; d < block.head_dim; d += WIDTH) sum_values<Element, QUERIES, 1>(block, view, query, d, to);
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

static void weigh_block(const AttendBlock& block, const ChunkView& view, Partial* partials) {
    const int64_t chunk_start = view.first_page * PAGE_TOKENS;
    const int from_page = static_cast<int>(view.first - chunk_start) / PAGE_TOKENS;
    const int to_page = static_cast<int>(view.last - chunk_start) / PAGE_TOKENS + 1;
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

template <typename Element>
static void attend_elements(const AttendBlock& block, const ChunkView& view, Partial* partials) {
    const int num_queries = block.num_tokens * block.num_heads;
    int query = 0;
    for (; query + TILE_QUERIES <= num_queries; query += TILE_QUERIES)
        score_queries<Element, TILE_QUERIES>(block, view, query);
    if (num_queries - query == 3) score_queries<Element, 3>(block, view, query);
    if (num_queries - query == 2) score_queries<Element, 2>(block, view, query);
    if (num_queries - query == 1) score_queries<Element, 1>(block, view, query);
    weigh_block(block, view, partials);
    for (query = 0; query + TILE_QUERIES <= num_queries; query += TILE_QUERIES)
        sum_queries<Element, TILE_QUERIES>(block, view, query, partials);
    if (num_queries - query == 3) sum_queries<Element, 3>(block, view, query, partials);
    if (num_queries - query == 2) sum_queries<Element, 2>(block, view, query, partials);
    if (num_queries - query == 1) sum_queries<Element, 1>(block, view, query, partials);
}

static void scale_queries(const AttendBlock& block, float* scaled) {
    for (int token = 0; token < block.num_tokens; token++)
        for (int i = 0; i < block.num_heads * block.head_dim; i++)
            *scaled++ = block.query[token * block.query_stride + i] * block.scale;
}

static void attend_chunk(const AttendBlock& block, int64_t chunk, Partial* partials) {
    alignas(64) float scores[MAX_BLOCK_QUERIES * CHUNK_TOKENS];
    alignas(64) float scaled[MAX_BLOCK_QUERIES * MAX_HEAD_DIM];
    const int64_t start = chunk * CHUNK_TOKENS, stop = start + CHUNK_TOKENS;
    const int64_t seen = first_seen(block, block.first_position);
    const int64_t last = block.first_position + block.num_tokens - 1;
    const ChunkView view{
        seen > start ? seen : start, last < stop ? last : stop - 1, start / PAGE_TOKENS, scores, scaled};
    scale_queries(block, scaled);
    if (block.is_half) {
        attend_elements<half>(block, view, partials);
    } else {
        attend_elements<float>(block, view, partials);
    }
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
