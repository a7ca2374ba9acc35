/*
 * list.h: an intrusive doubly linked list with a head node. Pure; the caller locks.
 */
#ifndef KVS_LIST_H
#define KVS_LIST_H

#include <stddef.h>

struct kvs_link {
    struct kvs_link *prev, *next;
};

#define KVS_ENTRY(link, type, member) ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void kvs_list_init(struct kvs_link *head)
{
    head->prev = head->next = head;
}

static inline int kvs_list_empty(const struct kvs_link *head)
{
    return head->next == head;
}

/* A link that is in no list: removing it is allowed and does nothing. */
static inline void kvs_list_remove(struct kvs_link *link)
{
    if (link->next) {
        link->prev->next = link->next;
        link->next->prev = link->prev;
        link->prev = link->next = NULL;
    }
}

static inline void kvs_list_add_first(struct kvs_link *head, struct kvs_link *link)
{
    kvs_list_remove(link);
    link->prev = head;
    link->next = head->next;
    head->next->prev = link;
    head->next = link;
}

static inline void kvs_list_add_last(struct kvs_link *head, struct kvs_link *link)
{
    kvs_list_add_first(head->prev, link);
}

/* All of `from`, which is empty afterwards, in order to the end of `to`. */
static inline void kvs_list_move_all(struct kvs_link *to, struct kvs_link *from)
{
    if (!kvs_list_empty(from)) {
        from->next->prev = to->prev;
        from->prev->next = to;
        to->prev->next = from->next;
        to->prev = from->prev;
        kvs_list_init(from);
    }
}

#endif
