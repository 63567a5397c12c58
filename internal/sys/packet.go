package sys

import (
	"io"

	"golang.org/x/sys/unix"
)

// PacketPair is a connected pair of sockets that keep message boundaries and
// carry descriptors.
func PacketPair() (a, b int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return fds[0], fds[1], err
}

// SendPacket sends one message with the given descriptors.
func SendPacket(sock int, data []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(sock, data, oob, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// ReceivePacket receives one message into buf, and its descriptors. io.EOF
// means that the other side is gone; a message that does not fit is an error.
func ReceivePacket(sock int, buf []byte) (data []byte, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*16))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if oobn > 0 {
			msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil {
				return nil, nil, err
			}
			for _, m := range msgs {
				got, err := unix.ParseUnixRights(&m)
				if err != nil {
					return nil, nil, err
				}
				fds = append(fds, got...)
			}
		}
		if n == 0 && len(fds) == 0 {
			return nil, nil, io.EOF
		}
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, nil, unix.EMSGSIZE
		}
		return buf[:n], fds, nil
	}
}

// WaitExit waits until the process of a pidfd ends.
func WaitExit(pidfd int) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, -1); err != unix.EINTR {
			return
		}
	}
}
