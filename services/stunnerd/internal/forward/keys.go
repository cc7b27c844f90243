package forward

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"time"
)

// settleAfter is how long a new key only decrypts frames. Until then the previous key encrypts, so that each receiver
// has the key of a frame. A pod that receives no lists for 30 s is removed from the list, so settleAfter is longer than
// 30 s.
const settleAfter = time.Minute

// derive returns the cipher of frames from sender to receiver. A frame cannot be replayed to another pod, or to a later
// process of the receiver, because every other process has other keys.
func derive(secret [32]byte, sender, receiver [8]byte) cipher.AEAD {
	info := "stunner forwarding 1" + string(sender[:]) + string(receiver[:])
	key, err := hkdf.Key(sha256.New, secret[:], nil, info, 16)
	if err != nil {
		panic(err) // cannot happen: HKDF fails only for longer keys
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // cannot happen: AES fails only for other key sizes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // cannot happen: GCM fails only for other block sizes
	}
	return aead
}

// datedKey is a key and the time at which a list first contained the key.
type datedKey struct {
	Key
	since time.Duration
}

// sealing returns the key that encrypts frames: the newest key older than settleAfter. If there is none, it returns the
// oldest key.
func sealing(keys []datedKey, now time.Duration) Key {
	for _, k := range keys {
		if now-k.since >= settleAfter {
			return k.Key
		}
	}
	return keys[len(keys)-1].Key
}

// pair identifies a derived key: a key, and the process at the other end.
type pair struct {
	key  Key
	peer [8]byte
}

// opener opens the frames of one sender under one key.
type opener struct {
	aead   cipher.AEAD
	window window
	// unlisted is the time since which the sender is in no list, or 0. Forwarder.lists guards it.
	unlisted time.Duration
}

// retireAfter is how long the opener of a sender that is in no list is kept. A pod that has only lost its connection to
// config discovery is in the list again within seconds. A process that was replaced is never listed again. After
// retireAfter, only the highest counter is kept, so that no frame is accepted twice if the sender is listed again.
const retireAfter = 5 * time.Minute

// retire replaces the openers of senders that have left the list by their highest counters.
func (f *Forwarder) retire(now time.Duration) {
	f.lists.Lock()
	defer f.lists.Unlock()
	for p, o := range f.openers {
		if o.unlisted != 0 && now-o.unlisted >= retireAfter {
			f.retired[p] = o.window.highest.Load()
			delete(f.openers, p)
		}
	}
}
